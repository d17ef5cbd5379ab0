"""Fixtures that all tests of Chronus share."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def short_idle_ends():
    """A replay ends after 500 wake-ups with no change in a row, not after 10,000.

    Chronus wakes up at each cycle, also if the only jobs left fit nowhere. Here a cycle takes at
    least 250 s, and the longest job 9,000 s.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sia.core.playout.MAX_IDLE_WAKES", 500)
        yield
