"""Fixtures that all tests of the daemon share."""

import pytest

from daemon.answers.estimates import estimator
from daemon.answers.whatif import questions
from daemon.forecasts import retraining
from daemon.runtime.gc import GcScheduler


@pytest.fixture(scope="session", autouse=True)
def as_urgent_as_the_tests():
    """Processes that compute in the background run at the tests' priority.

    On a machine whose cores are busy, one of the lowest priority would get a hundredth of a core.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(estimator, "KINDNESS", 0)
        patched.setattr(questions, "WHATIF_KINDNESS", 0)
        patched.setattr(retraining, "KINDNESS", 0)
        yield


@pytest.fixture(scope="session", autouse=True)
def without_collecting():
    """Services do not collect garbage when they start.

    It takes a tenth of a second each time, as the process of the tests has many objects.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(GcScheduler, "freeze", lambda _: None)
        yield


@pytest.fixture
def folder(tmp_path):
    """The folder of a story: each has its own."""
    return tmp_path
