"""Webhooks: what is told to whom, and by whom."""

import asyncio
import sqlite3
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from daemon.doors.webhooks import webhook as hook_module
from daemon.doors.webhooks.delivery import DeliveryBatcher, opened
from daemon.journal.journal import DeadLetter
from daemon.model.access import Principal, Role, visible_to
from daemon.model.errors import UnavailableError
from daemon.model.outputs import Notice
from tests.support.daemons.daemons import until
from tests.support.daemons.doors import story
from tests.support.servers.webhooks import (
    certificate,
    happens,
    hook,
    parts,
    receiver,
    telling,
    told_all,
)


def events_for(folder, notices, **more):
    """What a hook is told of these, in one delivery."""

    async def page(_after):
        return notices

    cutter = DeliveryBatcher(hook(folder, "https://a.example/", **more), page)
    delivery = asyncio.run(cutter.next(0))
    body = delivery.body.decode()
    return opened(DeadLetter(1, "ops", 1, 0.0, "", body)).events if body else []


def test_a_lender_learns_the_borrowing_pool_but_not_the_job(tmp_path):
    notices = [
        Notice(1, 0.0, "loan_opened", "secret", "vision", data={"to": "speech", "gpus": 2}),
        Notice(2, 0.0, "loan_closed", "own", "vision", data={"to": "speech", "gpus": 2}),
        Notice(3, 0.0, "ended", "mine", "vision"),
        Notice(4, 0.0, "ended", "theirs", "speech"),
        Notice(5, 0.0, "token_issued", data={"name": "a"}),
    ]
    told = events_for(tmp_path, notices, pools=["vision"])
    assert [(event.seq, event.job) for event in told] == [(1, ""), (2, ""), (3, "mine")]
    assert told[0].data == {"to": "speech", "gpus": 2}
    told = events_for(tmp_path, notices, pools=["vision", "speech"])
    assert [event.job for event in told] == ["secret", "own", "mine", "theirs"]
    assert events_for(tmp_path, notices) == notices


def test_a_dedicated_start_is_not_reported_as_a_loan(tmp_path):
    def loan(seq, kind, pool, **more):
        return Notice(seq, 0.0, kind, "j", pool, data={"gpus": 2, "to": "speech", **more})

    notices = [
        loan(1, "loan_opened", "speech"),
        loan(2, "loan_moved", "vision", previous="speech"),
        loan(3, "loan_moved", "other", previous="vision"),
        loan(4, "loan_moved", "speech", previous="other"),
        loan(5, "loan_closed", "speech"),
    ]
    borrowed, given_back = loan(2, "loan_opened", "vision"), loan(4, "loan_closed", "other")
    assert events_for(tmp_path, notices) == [borrowed, notices[2], given_back]
    assert events_for(tmp_path, notices, events=["loan_opened"]) == [borrowed]
    told = events_for(tmp_path, notices, pools=["other"])
    assert told == [replace(each, job="") for each in (notices[2], given_back)]
    moved_on = loan(3, "loan_closed", "vision")
    told = events_for(tmp_path, notices, pools=["vision"])
    assert told == [replace(each, job="") for each in (borrowed, moved_on)]
    assert events_for(tmp_path, notices, pools=["vision", "speech"]) == [borrowed, moved_on]
    only = events_for(tmp_path, notices, pools=["vision"], events=["loan_closed"])
    assert only == [replace(moved_on, job="")]
    viewer = Principal("v", Role.VIEWER, frozenset({"vision"}))
    shown = [visible_to(viewer, notice) for notice in notices]
    assert shown == [None, *(replace(each, job="") for each in (borrowed, moved_on)), None, None]


POOLS = ("vision", "speech", "other", "more")


@given(
    st.lists(st.sampled_from(POOLS), min_size=1, max_size=8),
    st.sets(st.sampled_from(POOLS), min_size=1),
)
def test_the_sum_of_events_gives_the_current_loans(tmp_path_factory, donors, pools):
    """However often a loan to `speech` moves, and whichever pools a receiver or viewer hears of."""
    notices = [Notice(1, 0.0, "loan_opened", "j", donors[0], data={"gpus": 2, "to": "speech"})]
    for before, pool in pairwise(donors):
        data = {"gpus": 2, "to": "speech", "previous": before}
        if pool != before:
            notices.append(Notice(len(notices) + 1, 0.0, "loan_moved", "j", pool, data=data))
    viewer = Principal("v", Role.VIEWER, frozenset(pools))
    hooked = events_for(tmp_path_factory.getbasetemp(), notices, pools=pools)
    for told in (hooked, [shown for each in notices if (shown := visible_to(viewer, each))]):
        lent = Counter()
        for event in told:
            lent[event.pool] += -2 if event.kind == "loan_closed" else 2
            if event.kind == "loan_moved":
                lent[event.data["previous"]] -= 2
        for pool in pools:
            assert lent[pool] == (2 if pool == donors[-1] != "speech" else 0)


@story
async def test_dead_letters_dropped_twice_are_counted_once(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hook_module, "MOST_DEAD", 3)
        async with (
            receiver(400) as ops,
            telling(folder, hook(folder, ops, batch=1, refusals=1)) as daemon,
        ):
            await happens(daemon.service, 5)
            one = daemon.hooks.get("ops")
            await until(lambda: one.state == "full")
            await asyncio.gather(one.drop([1]), one.drop([1]))
            await until(lambda: one.state == "full")  # the next of them died
            assert one.dead == len(await daemon.service.letters.numbers("ops")) == 3


@story
async def test_a_daemon_that_loses_the_lease_while_it_waits_sends_nothing(folder):
    async with receiver() as ops, telling(folder, hook(folder, ops)) as daemon:
        one, acts, asked = daemon.hooks.get("ops"), [True], []

        def holds():
            asked.append(acts[0])
            return acts[0]

        fence = SimpleNamespace(holds=holds)
        one._context, before = one._context._replace(fence=fence), one._context
        async with one._sending:  # as if a dead letter were on its way
            await happens(daemon.service, 1)
            await until(lambda: one._sending._waiters)  # the event waits for its turn
            acts[0] = False
        await until(lambda: False in asked)
        with pytest.raises(UnavailableError, match="another daemon"):
            await one.test()
        assert ops.got == []
        one._context = before
        await told_all(daemon, ops)


@story
async def test_only_the_right_certificate_is_trusted(folder):
    mine, context = certificate(folder, "127.0.0.1")
    other, _ = certificate(folder, "another.example")
    async with receiver(tls=context) as ops:
        hooks = (
            hook(folder, ops, "right", ca_file=mine),
            hook(folder, ops, "wrong", ca_file=other),
            hook(folder, ops, "system"),
            hook(folder, ops.url.replace("https", "http"), "plain"),
        )
        async with telling(folder, *hooks) as daemon:
            await happens(daemon.service, 1)
            await told_all(daemon, ops)
            await until(lambda: len(parts(daemon)) == 3)
            assert {got.headers["X-Sia-Delivery"].split("-")[0] for got in ops.got} == {"right"}
            for name in ("wrong", "system"):
                assert "certificate verification failed" in parts(daemon)[f"webhook {name}"]


@story
async def test_a_certificate_for_another_name_is_not_trusted(folder):
    cert, context = certificate(folder, "another.example")
    async with (
        receiver(tls=context) as ops,
        telling(folder, hook(folder, ops, ca_file=cert)) as daemon,
    ):
        await happens(daemon.service, 1)
        await until(lambda: parts(daemon))
        assert "mismatch" in parts(daemon)["webhook ops"]
        assert "not valid for" in parts(daemon)["webhook ops"]
        assert ops.got == []


@story
async def test_expired_events_are_logged_once(folder):
    said = []
    async with receiver() as gone:
        port = gone.port
    async with telling(folder, hook(folder, gone)) as daemon:
        await happens(daemon.service, 5)
    with sqlite3.connect(daemon.config.database) as db:
        db.execute("DELETE FROM notices WHERE seq <= 3")
    db.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hook_module, "backoff", lambda _: 0.01)
        patch.setattr(
            hook_module, "log", lambda: SimpleNamespace(warning=lambda *_, **w: said.append(w))
        )
        answers = iter([500, 500])
        async with receiver(lambda _: next(answers, 200), port=port) as ops:
            async with telling(folder, hook(folder, ops)) as daemon:
                await told_all(daemon, ops)
            assert ops.numbers == list(range(4, daemon.service.last_notice + 1))
    assert said == [{"webhook": "ops", "first": 1, "last": 3}]


@story
async def test_a_webhook_is_healthy_again_once_a_delivery_was_accepted(folder):
    async with (
        receiver(400) as ops,
        telling(folder, hook(folder, ops, batch=1, refusals=1)) as daemon,
    ):
        await happens(daemon.service, 1)
        await until(lambda: parts(daemon))
        ops.answer = 200
        daemon.hooks.get("ops").again([1])
        await until(lambda: not parts(daemon))
        ops.answer = 400
        await happens(daemon.service, 1, prefix="other")
        await until(lambda: parts(daemon))
        ops.answer = 200
        await daemon.hooks.get("ops").test()
        assert not parts(daemon)
