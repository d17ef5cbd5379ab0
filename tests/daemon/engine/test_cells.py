"""`GET /v1/cells`: free GPUs by the largest free cell that they are in."""

from hypothesis import given
from hypothesis import strategies as st

from cells.layout.shape import Shape
from daemon.config.config import PoolConfig
from daemon.doors.views.free_cells import merged
from tests.support.clusters.cells import spec
from tests.support.daemons.doors import asked, door, job_in, story

SHAPE = Shape(("gpu", "pair", "quad", "node", "rack"), (1, 2, 2, 2, 3), 3)
POOLS = (PoolConfig("vision", 24), PoolConfig("speech", 8))


def naive(free):
    """Go through all cells, the largest first, and take the GPUs of those that are free."""
    free, found = [*free], []
    for size in reversed(SHAPE.size):
        whole = [i for i in range(0, len(free), size) if all(free[i : i + size])]
        found.append(len(whole))
        for i in whole:
            free[i : i + size] = [False] * size
    return found[::-1]


@given(
    st.lists(st.booleans(), min_size=24, max_size=24),
    st.lists(st.sampled_from((0, 1)), min_size=24, max_size=24),
)
def test_free_gpus_are_counted_once_in_the_largest_cell(one, other):
    free = [*one, *map(bool, other)]
    counts = merged(SHAPE, free)
    assert counts == naive(free)
    assert sum(n * size for n, size in zip(counts, SHAPE.size, strict=True)) == sum(free)


@story
async def test_the_api_shows_the_free_cells_of_each_chain(folder):
    quotas = {"vision": {"node": 3}, "speech": {"node": 1}}
    async with door(folder, pools=POOLS, cells=spec(quotas=quotas), speed=1.0) as client:
        (chain,) = (await asked(client, "GET", "/v1/cells"))["chains"]
        assert (chain["chain"], chain["gpus"], chain["used"], chain["out"]) == ("rack", 32, 0, 0)
        assert [level["free"] for level in chain["levels"]] == [2, 0, 0, 0, 0]
        job = {"id": "a", "pool": "vision", "gpus": 2, "duration": 1e6}
        await asked(client, "POST", "/v1/jobs", job, status=201)
        await job_in(client, "a", "running")
        (chain,) = (await asked(client, "GET", "/v1/cells"))["chains"]
        sizes = {level["type"]: (level["gpus"], level["free"]) for level in chain["levels"]}
        assert sizes == {
            "rack": (16, 1),
            "node": (8, 1),
            "quad": (4, 1),
            "pair": (2, 1),
            "gpu": (1, 0),
        }
        await asked(client, "POST", "/v1/nodes/n0/drain")
        await asked(client, "POST", "/v1/nodes/n1/drain")
        (chain,) = (await asked(client, "GET", "/v1/cells"))["chains"]
        assert (chain["used"], chain["out"]) == (2, 14)
        free = sum(level["gpus"] * level["free"] for level in chain["levels"])
        assert free == 32 - 2 - 14


@story
async def test_without_cells_the_api_shows_none(folder):
    async with door(folder) as client:
        assert (await asked(client, "GET", "/v1/cells"))["chains"] == []
