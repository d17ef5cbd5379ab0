"""Calls of a policy that survive its exceptions."""

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
"""The methods of a policy through which it learns about changes."""


class PolicyFailure(NamedTuple):
    """An exception of a policy, and the method that raised it."""

    method: str
    error: Exception


class PolicyFailedError(ValueError):
    """A policy raised an exception when it was called. The state did not change."""

    def __init__(self, failure: PolicyFailure) -> None:
        """Create the error; its text names the method."""
        super().__init__(told(failure))
        self.failure = failure


def ask(policy: Policy, method: str, job: JobStateView) -> Any:
    """Call a policy's method for a job. Raises PolicyFailedError if the method raises."""
    try:
        return getattr(policy, method)(job)
    except Exception as error:
        raise PolicyFailedError(PolicyFailure(method, error)) from error


def attached(policy: Policy, state: ClusterState) -> Policy:
    """Attach a policy to the state and return it. Raises PolicyFailedError if it raises."""
    try:
        policy.attach(state)
    except Exception as error:
        raise PolicyFailedError(PolicyFailure("attach", error)) from error
    return policy


def told(failure: PolicyFailure) -> str:
    """Return a failure in one line."""
    return f"the policy failed in {failure.method}: {described(failure.error)}"


def described(error: Exception) -> str:
    """Return an exception of a policy as one line that is the same in each run.

    The line becomes part of a decision. It must not contain addresses of objects: if recovery
    repeats a step and gets another decision than the journal has, it refuses the journal.
    """
    given = [str(each) for each in error.args if isinstance(each, str | int | float)]
    words = " ".join(ADDRESS.sub("", ", ".join(given)).split())[:MAX_FAILURE]
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


class GuardedPolicy(Policy):
    """Passes changes on to a policy, and reports its exceptions instead of raising them.

    The change of the state is complete even if the policy raises. The policy may know only a part
    of the change, so the core replaces it by a new one.
    """

    def __init__(self, policy: Policy, failed: Callable[[PolicyFailure], None]) -> None:
        """Guard a policy; `failed` is called with each exception."""
        super().__init__(policy.params)
        self._failed = failed
        for hook in HOOKS:
            setattr(self, hook, partial(self._tell, getattr(policy, hook), hook))

    def _tell(self, tell: Callable[..., None], hook: str, *news: Any) -> None:
        try:
            tell(*news)
        except Exception as error:  # noqa: BLE001  whatever a policy does
            self._failed(PolicyFailure(hook, error))
