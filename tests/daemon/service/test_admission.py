"""Limits: so many jobs a second and so many that wait, of each pool and of each token."""

import asyncio
import math

from hypothesis import given
from hypothesis import strategies as st

from daemon.config.access import LimitsConfig, RateLimit
from daemon.config.config import PoolConfig
from daemon.model.book import Book, JobRecord, PoolRecord
from daemon.model.job import JobPhase, JobSpec
from daemon.runtime.rate_limit import TokenBucket
from daemon.service.admission import ADMITTED_FOR, COUNT_EVERY, Admission, JobCount
from tests.support.daemons.daemons import setup
from tests.support.daemons.doors import asked, door, story


class World:
    """A book and a clock, and an admission to it."""

    def __init__(self, *, past=(), pools=None, **limits):
        self.now = 0.0
        self.book = Book(setup(a=4, b=4))
        self.book.pools = {name: PoolRecord(name, 4) for name in "ab"}
        self.past = set(past)

        async def known(ids):
            return {job_id: None for job_id in ids if job_id in self.past}

        self.admission = Admission(
            LimitsConfig(**limits), pools or {}, lambda: self.book, known, lambda: self.now
        )

    def waits(self, job_id, pool="a", by="", phase=JobPhase.PENDING):
        self.book.add(JobRecord(JobSpec(job_id, pool, 1), 0.0, 1.0, phase, by=by))

    def asks(self, *asks, who=""):
        found = asyncio.run(self.admission.refusals(who, [JobCount(*each) for each in asks]))
        return [None if why is None else why.title for why in found]


def test_an_array_that_never_fits_is_refused_without_a_time_to_retry():
    world = World(max_waiting=50, token_max_waiting=40)
    said = world.admission.refusal("a", 60)
    assert (said.status, said.retry_after, said.mend) == (422, 0.0, "submit it as several arrays")
    assert world.admission.refusal("a", 45) is None
    assert "token ann may have 40" in world.admission.refusal("b", 45, "ann").detail


def test_without_limits_everything_passes():
    world = World()
    assert all(world.admission.refusal("a", 1000, "ann") is None for _ in range(100))


def test_each_pool_has_its_own_rate_and_burst():
    world = World(rate=2.0, burst=3)
    said = [world.admission.refusal("a", 1) for _ in range(4)]
    assert said[:3] == [None] * 3
    assert (said[3].status, said[3].title, said[3].retry_after) == (429, "too many jobs", 0.5)
    assert "pool a gets more than 2 jobs a second" in said[3].detail
    assert said[3].mend == "retry in 0.5 s"
    assert world.admission.refusal("b", 1) is None
    world.now = 0.5
    assert world.admission.refusal("a", 1) is None
    assert world.admission.refusal("a", 1) is not None


def test_tokens_have_limits_of_their_own_over_all_pools():
    world = World(token_rate=1.0, token_burst=2)
    assert world.admission.refusal("a", 1, "ann") is None
    assert world.admission.refusal("b", 1, "ann") is None
    assert "token ann submits" in world.admission.refusal("a", 1, "ann").detail
    assert world.admission.refusal("a", 1, "bob") is None


def test_a_refusal_by_one_limit_counts_for_no_other():
    world = World(rate=1.0, burst=1, token_rate=1.0, token_burst=2)
    assert world.admission.refusal("a", 1, "ann") is None
    for _ in range(5):
        assert world.admission.refusal("a", 1, "ann") is not None
    assert world.admission.refusal("b", 1, "ann") is None


def test_a_pool_may_have_other_limits_than_most():
    usual = LimitsConfig(rate=1.0, burst=1, max_waiting=5).pool
    assert PoolConfig("a", 4).limit(usual) == usual
    assert PoolConfig("a", 4, rate=7.0).limit(usual) == RateLimit(7.0, None, 5)
    assert PoolConfig("a", 4, max_waiting=9).limit(usual) == RateLimit(1.0, 1, 9)
    assert RateLimit(7.0, None, 5).at_once == 70.0


def test_an_array_wider_than_the_burst_passes_once_all_is_there():
    world = World(rate=1.0, burst=10)
    assert world.asks(("x", "a", 100)) == [None]
    assert world.asks(("y", "a", 1)) == ["too many jobs"]
    world.now = 91.0
    assert world.asks(("y", "a", 1)) == [None]


def test_no_more_jobs_are_pending_than_allowed():
    world = World(max_waiting=3)
    for i in range(2):
        world.waits(f"w{i}")
    world.waits("runs", phase=JobPhase.RUNNING)
    world.waits("other", pool="b")
    said = world.asks(("x", "a", 1), ("y", "a", 1), ("z", "b", 2), ("array", "b", 2))
    assert said == [None, "too many pending jobs", None, "too many pending jobs"]
    for job_id in ("x",):
        world.waits(job_id)
    assert world.asks(("y", "a", 1)) == ["too many pending jobs"]
    world.book.jobs["w0"].phase = JobPhase.RUNNING
    assert world.asks(("y", "a", 1)) == ["too many pending jobs"]  # all were counted just now
    world.now += COUNT_EVERY
    assert world.asks(("y", "a", 1)) == [None]


def test_pending_jobs_of_a_token_count_in_all_pools():
    world = World(token_max_waiting=2)
    world.waits("w0", "a", by="ann", phase=JobPhase.HELD)
    world.waits("w1", "b", by="bob")
    assert world.asks(("x", "b", 1), ("y", "a", 1), who="ann") == [None, "too many pending jobs"]
    assert world.asks(("z", "a", 1), who="bob") == [None]


def test_admitted_jobs_that_are_refused_later_count_for_a_while_only():
    world = World(max_waiting=1)
    assert world.asks(("x", "a", 1)) == [None]
    world.now = COUNT_EVERY
    assert world.asks(("y", "a", 1)) == ["too many pending jobs"]  # x may be on its way
    world.now = ADMITTED_FOR
    assert world.asks(("y", "a", 1)) == [None]


def test_a_known_job_is_not_counted_as_new():
    world = World(past=["old", "olds.0"], rate=1.0, burst=1, max_waiting=1)
    world.waits("x")
    assert world.asks(("x", "a", 1), ("old", "a", 1), ("olds", "a", 7), ("new", "a", 1)) == [
        None, None, None, "too many pending jobs",
    ]  # fmt: skip


def test_the_engine_refuses_an_unknown_pool():
    world = World(rate=1.0, burst=1)
    assert world.asks(*((f"x{i}", "nowhere", 1) for i in range(9))) == [None] * 9


@given(
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 9)), max_size=60),
    st.floats(0.1, 50),
    st.integers(1, 20),
)
def test_a_bucket_never_lets_more_through_than_rate_and_burst(tries, rate, burst):
    now = [0.0]
    bucket = TokenBucket(rate, float(burst), lambda: now[0])
    through = last = 0
    for wait, count in tries:
        now[0] += wait
        late = bucket.take(count)
        if late:
            now[0] += late * (1 + 1e-9) + 1e-9
            assert bucket.take(count) == 0.0  # who waits as told is let through
        through, last = through + count, count
        assert through - last <= burst + rate * now[0] + 1e-6 or math.isinf(now[0])


@story
async def test_over_http_a_refusal_states_when_to_retry(folder):
    limits = LimitsConfig(rate=0.001, burst=2)
    async with door(folder, limits=limits, speed=1.0) as client:
        jobs = jobs_of(5)
        for job in jobs[:2]:
            await asked(client, "POST", "/v1/jobs", job, status=201)
        async with client.post("/v1/jobs", json=jobs[2]) as response:
            said = await response.json(content_type="application/problem+json")
            assert response.status == 429
            assert int(response.headers["Retry-After"]) > 900
        assert said["title"] == "too many jobs"
        assert said["mend"]
        await asked(client, "POST", "/v1/jobs", jobs[0])  # known
        batch = await asked(client, "POST", "/v1/jobs", {"jobs": jobs})
        assert [line["status"] for line in batch["jobs"]] == [200, 200, 429, 429, 429]
        assert batch["jobs"][3]["retry_after"] > 900
        assert len(client.service.book.jobs) == 2


@story
async def test_over_http_concurrent_requests_keep_the_limit_of_pending_jobs(folder):
    pools = (PoolConfig("vision", 2, max_waiting=10),)
    async with door(folder, pools=pools, speed=1.0) as client:

        async def send(job):
            async with client.post("/v1/jobs", json=job) as response:
                return response.status

        statuses = await asyncio.gather(*map(send, jobs_of(60)))
        assert set(statuses) == {201, 429}
        assert 10 <= statuses.count(201) <= 12  # two may have started already
        waiting = [j for j in client.service.book.jobs.values() if j.phase is JobPhase.PENDING]
        assert len(waiting) <= 10


def jobs_of(count):
    return [
        {"id": f"j{i}", "pool": "vision", "gpus": 1, "duration": 1e6} for i in range(count)
    ]  # fmt: skip
