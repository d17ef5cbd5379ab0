"""Webhooks: whoever is to hear of what happens hears of it, in order, whatever fails."""

import asyncio
from functools import wraps
from random import Random
from types import SimpleNamespace

import pytest
from aiohttp import web

from daemon.config.webhook_limits import FIRST_PAUSE, LONGEST_PAUSE
from daemon.doors.webhooks import webhook as hook_module
from daemon.doors.webhooks.delivery import opened
from daemon.doors.webhooks.webhook import backoff
from daemon.journal.journal import Journal
from daemon.model.errors import JournalError
from tests.support.daemons.daemons import until
from tests.support.servers.webhooks import (
    happens,
    hook,
    parts,
    receiver,
    rude,
    signed,
    telling,
    told_all,
)


def story(tell):
    @wraps(tell)
    def test(*args, **more):
        asyncio.run(asyncio.wait_for(tell(*args, **more), 120))

    return test


@pytest.fixture
def impatient(monkeypatch):
    """Who fails is tried again at once."""
    monkeypatch.setattr(hook_module, "backoff", lambda _: 0.01)


def state(daemon, name="ops"):
    return daemon.hooks.get(name).state


@story
async def test_all_events_are_delivered_in_order_and_signed(tmp_path):
    async with receiver() as ops, telling(tmp_path, hook(tmp_path, ops)) as daemon:
        await happens(daemon.service, 250)
        await told_all(daemon, ops)
        assert ops.numbers == list(range(1, daemon.service.last_notice + 1))
        assert all(signed(got) for got in ops.got)
        assert not any(signed(got, "another-secret-of-ours") for got in ops.got)
        assert max(len(got.numbers) for got in ops.got) == 100
        first = ops.got[0]
        assert first.headers["X-Sia-Delivery"] == f"ops-1-{first.numbers[-1]}"
        assert first.headers["Content-Type"] == "application/json"
        assert first.events[-1]["kind"] == "submitted"
        assert state(daemon) == "delivering"
        await until(lambda: daemon.hooks.get("ops").lag == 0)  # it has heard the answer too


@story
async def test_a_webhook_receives_only_the_kinds_and_pools_that_it_names(tmp_path):
    async with (
        receiver() as ops,
        telling(tmp_path, hook(tmp_path, ops, events=["submitted"], pools=["speech"])) as daemon,
    ):
        await happens(daemon.service, 3, "vision", "v")
        await happens(daemon.service, 2, "speech", "s")
        await until(lambda: len(ops.numbers) == 2)
        assert [event["job"] for got in ops.got for event in got.events] == ["s0", "s1"]
        await until(lambda: daemon.hooks.get("ops").lag == 0)


@story
async def test_a_failed_delivery_is_repeated_unchanged_before_the_next(tmp_path, impatient):
    answers = iter([500, 429, 503])
    async with receiver(lambda _: next(answers, 200)) as ops:
        async with telling(tmp_path, hook(tmp_path, ops, batch=2)) as daemon:
            await happens(daemon.service, 4)
            await told_all(daemon, ops)
        tries, rest = ops.got[:4], ops.got[4:]
        assert [got.status for got in tries] == [500, 429, 503, 200]
        assert len({got.headers["X-Sia-Delivery"] for got in tries}) == 1
        assert len({got.body for got in tries}) == 1
        assert ops.numbers == [1, 2, 3, 4]
        assert all(signed(got) for got in ops.got)
        assert [got.numbers for got in rest] == [[3, 4]]


@story
async def test_a_receiver_that_returns_after_a_long_outage_receives_all_events(tmp_path):
    async with receiver() as ops:
        port = ops.port
    async with telling(tmp_path, hook(tmp_path, ops)) as daemon:
        await happens(daemon.service, 1000)
        await until(lambda: "webhook ops" in parts(daemon), 10.0)
        assert "refused" in parts(daemon)["webhook ops"]
        assert state(daemon) == "retrying"
        async with receiver(port=port) as back:
            await told_all(daemon, back, seconds=20.0)
            assert back.numbers == list(range(1, daemon.service.last_notice + 1))
        await until(lambda: not parts(daemon))


@story
async def test_a_slow_receiver_blocks_nobody(tmp_path, impatient):
    async with receiver(lambda _: asyncio.sleep(60, 200)) as slow, receiver() as quick:
        hooks = hook(tmp_path, slow, "slow", timeout=0.2), hook(tmp_path, quick, "quick")
        async with telling(tmp_path, *hooks) as daemon:
            for number in range(20):
                await happens(daemon.service, 10, prefix=f"{number}-")
            await told_all(daemon, quick)
            await until(lambda: "webhook slow" in parts(daemon))
            assert parts(daemon) == {"webhook slow": "no answer within 0.2 s"}
            assert state(daemon, "slow") == "retrying"
            assert daemon.hooks.get("slow").place.cursor == 0
            assert quick.numbers == list(range(1, daemon.service.last_notice + 1))


@story
async def test_a_delivery_that_is_refused_is_given_up_and_the_next_goes_on(tmp_path, impatient):
    async with receiver(lambda numbers: 422 if 3 in numbers else 200) as ops:
        async with telling(tmp_path, hook(tmp_path, ops, batch=1, refusals=4)) as daemon:
            await happens(daemon.service, 5)
            await told_all(daemon, ops)
            assert [got.numbers for got in ops.got].count([3]) == 4
            assert ops.numbers == [1, 2, 4, 5]
            assert daemon.hooks.get("ops").dead == 1
            (letter,) = await daemon.service.letters.dead("ops", 0, 10)
            assert (letter.seq, letter.why) == (3, "the receiver answers 422, 4 times")
            await until(lambda: not parts(daemon))
        ops.answer = 200
        async with telling(tmp_path, hook(tmp_path, ops, batch=1)) as daemon:
            await until(lambda: daemon.hooks.get("ops").dead == 1)
            daemon.hooks.get("ops").again([letter.number])
            await until(lambda: daemon.hooks.get("ops").dead == 0)
            assert ops.got[-1].body.decode() == letter.body
            assert await daemon.service.letters.dead("ops", 0, 10) == []


@story
async def test_a_delivery_that_fails_for_too_long_is_given_up(tmp_path, impatient):
    async with (
        receiver(503) as ops,
        telling(tmp_path, hook(tmp_path, ops, give_up=0.1)) as daemon,
    ):
        await happens(daemon.service, 1)
        await until(lambda: daemon.hooks.get("ops").dead >= 1)
        (letter,) = await daemon.service.letters.dead("ops", 0, 10)
        assert letter.why.startswith("the receiver answers 503, ")


@story
async def test_a_receiver_that_answers_gone_is_paused_until_somebody_resumes_it(tmp_path):
    async with receiver(410) as ops:
        async with telling(tmp_path, hook(tmp_path, ops)) as daemon:
            await happens(daemon.service, 1)
            await until(lambda: state(daemon) == "gone")
            await until(lambda: "the receiver answers 410 (gone)" in parts(daemon).values())
        ops.answer = 200
        async with telling(tmp_path, hook(tmp_path, ops)) as daemon:
            await happens(daemon.service, 1, prefix="later")
            await until(lambda: parts(daemon))
            assert state(daemon) == "gone", "also after a restart"
            assert len(ops.got) == 1
            daemon.hooks.get("ops").resume()
            await told_all(daemon, ops)
            assert ops.numbers == list(range(1, daemon.service.last_notice + 1)), "nothing is lost"


@story
async def test_a_changed_address_is_tried_after_the_old_one_was_gone(tmp_path):
    async with receiver(410) as ops, telling(tmp_path, hook(tmp_path, ops)) as daemon:
        await happens(daemon.service, 1)
        await until(lambda: state(daemon) == "gone")
    async with receiver() as other, telling(tmp_path, hook(tmp_path, other)) as daemon:
        await told_all(daemon, other)
        assert other.numbers == list(range(1, daemon.service.last_notice + 1))


@story
async def test_a_new_webhook_begins_with_later_events(tmp_path):
    async with receiver() as ops:
        async with telling(tmp_path) as daemon:
            await happens(daemon.service, 5)
            before = daemon.service.last_notice
        async with telling(tmp_path, hook(tmp_path, ops)) as daemon:
            await happens(daemon.service, 1, prefix="new")
            await told_all(daemon, ops)
            assert ops.numbers == list(range(before + 1, daemon.service.last_notice + 1))


@story
async def test_a_clean_stop_causes_no_repeated_delivery(tmp_path):
    async with receiver() as ops:
        for life in range(3):
            async with telling(tmp_path, hook(tmp_path, ops)) as daemon:
                await happens(daemon.service, 5, prefix=str(life))
                await told_all(daemon, ops)
        assert ops.numbers == list(range(1, daemon.service.last_notice + 1))


@story
async def test_a_daemon_that_ends_waits_for_the_answer_under_way(tmp_path):
    async with receiver(lambda _: asyncio.sleep(0.3, 200)) as ops:
        async with telling(tmp_path, hook(tmp_path, ops)) as daemon:
            await happens(daemon.service, 5)
            await until(lambda: ops.got)
        ops.answer = 200
        async with telling(tmp_path, hook(tmp_path, ops)) as daemon:
            await happens(daemon.service, 1, prefix="more")
            await told_all(daemon, ops)
        assert ops.numbers == list(range(1, daemon.service.last_notice + 1))


@story
async def test_a_database_that_is_away_loses_nothing(tmp_path, impatient, monkeypatch):
    monkeypatch.setattr(hook_module, "PROBE_EVERY", 0.02)
    monkeypatch.setattr("daemon.doors.webhooks.cursors.SAVE_EVERY", 0.02)
    monkeypatch.setattr(
        "daemon.service.event_feed.NOTICES_LIVE", 1
    )  # all others are in the database alone

    tried = []

    def away(*_):
        tried.append("again")
        raise JournalError("it is away")

    async with (
        receiver(lambda numbers: 400 if 3 in numbers else 200) as ops,
        telling(tmp_path, hook(tmp_path, ops, batch=1, refusals=2)) as daemon,
    ):
        with monkeypatch.context() as broken:
            broken.setattr(Journal, "notices", away)
            await happens(daemon.service, 5)
            await until(lambda: len(tried) > 2)
            assert ops.got == []
        with monkeypatch.context() as broken:
            for name in ("mark", "add_dead_letters"):
                broken.setattr(Journal, name, away)
            await until(lambda: [got.numbers for got in ops.got].count([3]) > 3)
            assert ops.numbers == [1, 2], "it cannot be given up where nobody would know of it"
        await told_all(daemon, ops)
        assert ops.numbers == [1, 2, 4, 5]
        assert [letter.seq for letter in await daemon.service.letters.dead("ops", 0, 9)] == [3]
        await until(lambda: daemon.hooks.get("ops").place.cursor == 5)
        saved = lambda: daemon.service._writer.journal.marks("webhook:")  # noqa: E731
        await until(lambda: saved() == {"webhook:ops": '{"cursor":5}'})


@story
async def test_a_daemon_without_the_lease_sends_no_webhooks(tmp_path, monkeypatch):
    monkeypatch.setattr(hook_module, "PROBE_EVERY", 0.02)
    async with receiver() as ops, telling(tmp_path, hook(tmp_path, ops)) as daemon:
        looks = []
        one, shut = daemon.hooks.get("ops"), SimpleNamespace(holds=lambda: looks.append("no"))
        one._context, before = one._context._replace(fence=shut), one._context
        await happens(daemon.service, 1)
        seen = len(looks)
        await until(lambda: len(looks) >= seen + 3)
        assert ops.got == []
        one._context = before
        await told_all(daemon, ops)


@story
async def test_a_webhook_with_too_many_dead_letters_pauses(tmp_path, monkeypatch):
    monkeypatch.setattr(hook_module, "MOST_DEAD", 2)
    async with (
        receiver(400) as ops,
        telling(tmp_path, hook(tmp_path, ops, batch=1, refusals=1)) as daemon,
    ):
        await happens(daemon.service, 4)
        await until(lambda: state(daemon) == "full")
        await until(lambda: "dead letters" in parts(daemon).get("webhook ops", ""))
        assert len(ops.got) == 2
        ops.answer = 200
        daemon.hooks.get("ops").again([1, 2])
        await until(lambda: sorted(ops.numbers) == [1, 2, 3, 4])
        assert ops.numbers.index(3) < ops.numbers.index(4)
        await until(lambda: not parts(daemon))


@story
async def test_a_defect_of_one_webhook_does_not_affect_others(tmp_path, monkeypatch):
    async with receiver() as ops, receiver() as other:
        hooks = hook(tmp_path, ops, "ops"), hook(tmp_path, other, "other")
        async with telling(tmp_path, *hooks) as daemon:
            monkeypatch.setattr(daemon.hooks.get("ops")._batcher, "next", lambda *_: 1 / 0)
            await happens(daemon.service, 1)
            await told_all(daemon, other)
            await happens(daemon.service, 1, prefix="more")
            await told_all(daemon, other)


@story
async def test_redirects_are_not_followed(tmp_path, impatient):
    async with receiver() as elsewhere:
        moved = web.HTTPFound(elsewhere.url)
        async with (
            receiver(lambda _: web.Response(status=302, headers=moved.headers)) as ops,
            telling(tmp_path, hook(tmp_path, ops, refusals=2)) as daemon,
        ):
            await happens(daemon.service, 1)
            await until(lambda: daemon.hooks.get("ops").dead)
            why = "the receiver answers 302; redirects are not followed"
            assert daemon.hooks.get("ops").last.why == why
        assert elsewhere.got == []


@story
async def test_a_receiver_can_state_how_long_to_wait(tmp_path, impatient):
    wishes = iter(["1", None])

    def answer(_):
        wish = next(wishes, None)
        return web.Response(status=503, headers={"Retry-After": wish}) if wish else 200

    async with receiver(answer) as ops, telling(tmp_path, hook(tmp_path, ops)) as daemon:
        await happens(daemon.service, 1)
        await told_all(daemon, ops)
        first, second = ops.got[:2]
        assert second.at - first.at > 0.9
        assert daemon.hooks.get("ops").due == 0


def test_pauses_grow_and_are_randomized():
    for tries in range(1, 40):
        most = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (tries - 1))
        pauses = [backoff(tries) for _ in range(200)]
        assert 0 <= min(pauses) < 0.2 * most
        assert 0.8 * most < max(pauses) <= most
    assert 0 <= backoff(10**6) <= LONGEST_PAUSE


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (b"", "the receiver closed the connection without a response"),
        (b"\x00\xff nonsense\r\n\r\n", "no answer: "),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\nX: " + b"y" * 10**6, "no answer: "),
        (b"HTTP/1.1 999 What\r\n\r\n", "the receiver answers 999"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", "the receiver closed the connection without a response"),
    ],
    ids=["nothing", "nonsense", "endless", "999", "continue"],
)
@story
async def test_any_answer_of_a_receiver_is_handled(tmp_path, impatient, what, why):
    async with rude(what) as url, telling(tmp_path, hook(tmp_path, url)) as daemon:
        await happens(daemon.service, 1)
        await until(lambda: parts(daemon))
        assert parts(daemon)["webhook ops"].startswith(why)
        assert state(daemon) == "retrying"


@story
async def test_a_receiver_that_answers_and_disconnects_has_received_the_batch(tmp_path):
    cut = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nbegun"
    async with rude(cut) as url, telling(tmp_path, hook(tmp_path, url)) as daemon:
        await happens(daemon.service, 1)
        await until(lambda: daemon.hooks.get("ops").lag == 0)


@pytest.mark.parametrize("seed", range(4))
@story
async def test_whatever_fails_each_event_is_delivered_in_order_or_becomes_a_dead_letter(
    tmp_path, impatient, seed
):
    rng = Random(seed)

    def answer(_):
        drawn = rng.random()
        if drawn < 0.05:
            return asyncio.sleep(0.15, 200)  # it took it, too late
        return rng.choice([200, 500, 429, 400]) if drawn < 0.6 else 200

    batch, wanted, dead = rng.randint(1, 9), set(), []
    async with receiver(answer) as ops:
        for life in range(3):
            one = hook(
                tmp_path, ops, batch=batch, refusals=2, timeout=0.1, pools=["vision"], give_up=9.0
            )
            async with telling(tmp_path, one) as daemon:
                for turn in range(5):
                    pool = rng.choice(["vision", "vision", "speech"])
                    await happens(daemon.service, rng.randint(1, 15), pool, f"{life}-{turn}-")
                if life == 2:
                    await until(lambda: daemon.hooks.get("ops").lag == 0, 20.0)
                    dead = await daemon.service.letters.dead("ops", 0, 1000)
                    notices = await daemon.service._writer.run(
                        lambda: daemon.service._writer.journal.notices(0, 10**6)
                    )
                    wanted = {notice.seq for notice in notices if notice.pool == "vision"}
    buried = {event.seq for letter in dead for event in opened(letter).events}
    taken = list(dict.fromkeys(ops.numbers))
    assert taken == sorted(taken)
    assert set(taken) | buried == wanted
    assert len(buried) < len(wanted) / 2
