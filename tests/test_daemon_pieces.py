"""Large values as JSON, piece by piece: the same bytes as at once."""

import asyncio
import threading

import pytest
from daemons import FakeBackend, serving, setup, submit, until
from msgspec import Struct, json

from daemon import pieces
from daemon.answers import Accepted
from daemon.engine import Engine
from daemon.pieces import pieces_of


class Inner(Struct):
    names: tuple[str, ...]
    none: None = None


class Outer(Struct):
    number: int
    inner: Inner
    by_name: dict[str, list[int]]
    text: str = 'a "quoted" {},[]'


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 7])
def test_pieces_are_the_bytes_of_the_whole(size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "AT_ONCE", 3)
        names = tuple(f'"{i}"' for i in range(size))
        value = Outer(size, Inner(names), {name: [1, 2] for name in names})
        assert b"".join(pieces_of(value, Inner)) == json.encode(value)
        assert b"".join(pieces_of(value)) == json.encode(value)


def test_no_piece_is_large():
    value = Outer(1, Inner(()), {str(i): [i] for i in range(10_000)})
    assert max(map(len, pieces_of(value))) < 20 * pieces.AT_ONCE


def test_who_looks_does_not_wait_for_a_snapshot_and_the_next_step_does(tmp_path):
    async def story():
        begun, go_on = threading.Event(), threading.Event()
        dump = Engine.dump

        def slow(engine):
            begun.set()
            assert go_on.wait(20)
            return dump(engine)

        with pytest.MonkeyPatch.context() as patch:
            backend = FakeBackend(runs=False)
            path, cluster = tmp_path / "db", setup(a=4)
            async with serving(path, cluster, backend, snapshot_every=3) as service:
                patch.setattr(Engine, "dump", slow)
                await service.submit([submit("one"), submit("two"), submit("three")])
                await asyncio.to_thread(begun.wait, 20)
                of_then = dump(service.engine)
                four = asyncio.create_task(service.submit([submit("four")]))
                for _ in range(50):
                    await asyncio.sleep(0)
                    await service.settled()
                assert service.book.job("four") is None
                seq = service.status().steps
                go_on.set()
                assert await four == [Accepted()]
                await until(lambda: not service._snapshots)
                kept = await service._keeper.run(lambda: service._keeper.journal.snapshot(seq))
                assert kept == of_then

    asyncio.run(asyncio.wait_for(story(), 30))
