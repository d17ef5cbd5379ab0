"""Large values are encoded as JSON in pieces, to the same bytes as in one call."""

import asyncio
import threading

import pytest
from msgspec import Struct, json

from daemon.engine.engine import Engine
from daemon.model.account import Account
from daemon.model.book import Book
from daemon.model.outputs import Accepted
from daemon.runtime import chunked_json
from daemon.runtime.chunked_json import json_chunks
from sia.model import Job
from sia.virtual.virtual_clock import VirtualClock
from tests.support.daemons.daemons import FakeBackend, serving, setup, submit, until


class Inner(Struct):
    names: tuple[str, ...]
    none: None = None


class Outer(Struct):
    number: int
    inner: Inner
    by_name: dict[str, list[int]]
    text: str = 'a "quoted" {},[]'


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 7])
def test_pieces_of_a_snapshot_join_to_the_bytes_of_the_whole(size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked_json, "AT_ONCE", 3)
        names = tuple(f'"{i}"' for i in range(size))
        value = Outer(size, Inner(names), {name: [1, 2] for name in names})
        assert b"".join(json_chunks(value, Inner)) == json.encode(value)
        assert b"".join(json_chunks(value)) == json.encode(value)


def account(jobs):
    clock = VirtualClock.of(1)
    for i in range(jobs):
        clock.submitted(float(i), Job(f"j{i}", "a", float(i), 1))
    clock.advance(jobs + 1.0)
    return Account(0.0, clock)


@pytest.mark.parametrize("sizes", [(), (0,), (9, 9), (2000,), (1, 2000, 1, 1), (2000, 2000)])
def test_accounts_with_many_jobs_are_in_pieces(sizes):
    book = Book(setup(a=1), accounts={f"p{i}": account(size) for i, size in enumerate(sizes)})
    found = [*json_chunks(book, Account, VirtualClock)]
    assert b"".join(found) == json.encode(book)
    assert max(map(len, found)) < 100 * chunked_json.AT_ONCE


def test_no_piece_is_large():
    value = Outer(1, Inner(()), {str(i): [i] for i in range(10_000)})
    assert max(map(len, json_chunks(value))) < 20 * chunked_json.AT_ONCE


def test_readers_do_not_wait_for_a_snapshot_but_the_next_step_does(tmp_path):
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
                kept = await service._writer.run(lambda: service._writer.journal.snapshot(seq))
                assert kept == of_then

    asyncio.run(asyncio.wait_for(story(), 60))
