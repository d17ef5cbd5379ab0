"""Times on pages: how far away they are, and when exactly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.doors.views.html import FAR, exactly, moment, relative
from sia.wording import DAY, HOUR, MINUTE
from tests.support.daemons.doors import asked, door, story
from tests.support.servers.browsers import browser, parsed, seen, when

NOW = 1.8e9

AWAY = {
    0.0: "now", 0.9: "now", 1.0: "in 1 s", 59.9: "in 59 s", MINUTE: "in 1 min",
    12.9 * MINUTE: "in 12 min", HOUR - 0.1: "in 59 min", HOUR: "in 1 h",
    3 * HOUR + 20 * MINUTE: "in 3 h 20 min", 10 * HOUR + 20 * MINUTE: "in 10 h",
    47.9 * HOUR: "in 47 h", 2 * DAY: "in 2 d", FAR - 1: "in 29 d", FAR: "2027-02-14",
}  # fmt: skip
"""Seconds from now, and what a page says."""


@pytest.mark.parametrize("away", AWAY)
def test_a_time_says_how_far_away_it_is(away):
    words = AWAY[away]
    assert relative(NOW + away, NOW) == words
    if words.startswith("in "):
        assert relative(NOW - away, NOW) == f"{words.removeprefix('in ')} ago"


@given(st.floats(0, 2e10), st.floats(0, 2e10))
def test_a_time_always_has_a_text(time, now):
    assert relative(time, now)
    assert str(moment(time, now)).startswith("<time datetime=")


def test_a_missing_time_is_shown_as_a_dash():
    assert moment(None, NOW) == exactly(None) == "–"


@story
async def test_a_page_shows_a_time_as_text_and_as_a_distance(folder):
    async with door(folder, speed=1.0) as client, browser(client) as visitor:
        job = {"id": "a", "pool": "vision", "gpus": 1, "duration": 1e6}
        await asked(client, "POST", "/v1/jobs", job, status=201)
        submitted = (await asked(client, "GET", "/v1/jobs/a"))["submitted"]
        tags, text = parsed(await seen(visitor, "/ui/jobs"))
        times = [has for tag, has in tags if tag == "time"]
        time = next(has for has in times if has["datetime"] in when(submitted))
        assert time["title"].endswith(" UTC")
        assert " s ago" in text or " now" in text
        (frame,) = [has for _, has in tags if has.get("id") == "as-of"]
        assert float(frame["data-speed"]) == 1.0
        assert 0 <= client.service.clock.now() - float(frame["data-now"]) < 600
