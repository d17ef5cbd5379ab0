"""Telling a policy what has changed, whatever it does with the news."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from sia.contract.policy import Policy
from sia.contract.views import JobStateView
from sia.limits import MAX_FAILURE
from sia.state.state import ClusterState

ADDRESS = re.compile(" at 0x[0-9a-fA-F]+")

HOOKS = (
    "submitted", "left", "finished", "before_progress", "progressed", "resized", "solved",
    "revealed",
)  # fmt: skip
"""The methods of a policy that tell it what has changed."""


class PolicyFailure(NamedTuple):
    """What a policy raised, and in which of its methods."""

    method: str
    error: Exception


class PolicyFailedError(ValueError):
    """A policy that raises when it is asked or told something. Nothing was changed."""

    def __init__(self, failure: PolicyFailure) -> None:
        """Create the error; its text names the method."""
        super().__init__(told(failure))
        self.failure = failure


def ask(policy: Policy, method: str, job: JobStateView) -> Any:
    """Return what a policy says about a job. Raises PolicyFailedError if it raises."""
    try:
        return getattr(policy, method)(job)
    except Exception as error:
        raise PolicyFailedError(PolicyFailure(method, error)) from error


def attached(policy: Policy, state: ClusterState) -> Policy:
    """Return a policy once it knows the state. Raises PolicyFailedError if it raises."""
    try:
        policy.attach(state)
    except Exception as error:
        raise PolicyFailedError(PolicyFailure("attach", error)) from error
    return policy


def told(failure: PolicyFailure) -> str:
    """Return a failure in one line."""
    return f"the policy failed in {failure.method}: {described(failure.error)}"


def described(error: Exception) -> str:
    """Return what a policy raised in one line, the same in each run.

    The line becomes part of a decision, and must not have addresses of objects: a journal in which
    a decision differs from its repetition cannot be recovered.
    """
    given = [str(each) for each in error.args if isinstance(each, str | int | float)]
    words = " ".join(ADDRESS.sub("", ", ".join(given)).split())[:MAX_FAILURE]
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


class GuardedPolicy(Policy):
    """Passes what has changed on to a policy, and reports what it raises in the place of raising.

    The change is then complete in the state. The policy knows only a part of it, so the core makes
    a new one.
    """

    def __init__(self, policy: Policy, failed: Callable[[PolicyFailure], None]) -> None:
        """Guard a policy; `failed` is called with each failure."""
        super().__init__(policy.params)
        self._policy, self._failed = policy, failed
        for hook in HOOKS:
            setattr(self, hook, partial(self._tell, hook))

    def _tell(self, hook: str, *news: Any) -> None:
        try:
            getattr(self._policy, hook)(*news)
        except Exception as error:  # noqa: BLE001  whatever a policy does
            self._failed(PolicyFailure(hook, error))
