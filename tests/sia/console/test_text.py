"""Times as people write them, and read them."""

from math import inf, nan

import pytest

from sia.limits import MAX_TIME
from sia.wording import duration, parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("0.0", 0), ("0s", 0), ("90s", 90), ("1.5h", 5400), (" 2d ", 172800), ("1w", 604800),
     ("1h30m", 5400), ("3d12h", 302400), ("1w2d3h4m5s", 788645), ("1h0.5s", 3600.5)],
)  # fmt: skip
def test_times_are_numbers_with_units(text, seconds):
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    "text", ["", " ", "h", "-1", "1h30", "30m1h", "1h1h", "1h 30m", "1e3", "1y", "nan", "1h30m,"]
)
def test_a_text_that_is_not_a_time_is_refused(text):
    with pytest.raises(ValueError, match="is not a time; write"):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["90", "1.5", " 90 "])
def test_a_number_needs_a_unit(text):
    fix = f"has no unit; write {text.strip()}s, {text.strip()}m or {text.strip()}h"
    with pytest.raises(ValueError, match=fix):
        parse_seconds(text)


def test_a_sum_of_times_may_be_too_long():
    most = f"{MAX_TIME - 1:.0f}s"
    assert parse_seconds(most) == MAX_TIME - 1
    with pytest.raises(ValueError, match="is too long"):
        parse_seconds(f"1w{most}")


@pytest.mark.parametrize("seconds", [None, inf, nan])
def test_an_endless_or_unknown_time_has_no_duration(seconds):
    assert duration(seconds) == "–"
