"""Report the remaining trials of a Ray Tune search to SIA. Needs ray[tune] and sia_progress.py.

    from sia_tune import SiaCallback

    tuner = tune.Tuner(
        trainable,
        run_config=tune.RunConfig(callbacks=[SiaCallback(iterations=100)]),
    )

The search is one elastic job of SIA: `sia submit --gpus 1 --max-width 8 …`. After each step of Tune
the callback reports the trials that have not ended: the GPUs of each, and the seconds that it still
needs. These follow from the time of its own iterations so far, or else of the other trials'
iterations. When Tune's scheduler stops a trial early, or adds one, SIA learns how many GPUs the job
can use now, and how long it still takes.

Ray runs as many trials at the same time as it has GPUs. Call `ray.init()` without an address, so
that it uses the GPUs of the attempt, and let `Tuner.restore` continue the search in the next
attempt.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from ray.tune import Callback
from sia_progress import Trials

OVER = ("TERMINATED", "ERROR")
"""Final states of a trial."""


class SiaCallback(Callback):
    """Report the remaining trials to SIA.

    Attributes:
        problem: Why the latest report failed, in one line; empty if it succeeded.
    """

    def __init__(
        self,
        iterations: float,
        *,
        seconds: float = 60.0,
        every: float = 30.0,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """Expect `iterations` iterations of each trial that is not stopped early.

        `seconds` is the assumed time of one iteration until a trial has made one. Raises ValueError
        as `Trials` does, or if `iterations` is not above 0.
        """
        if not iterations > 0:
            raise ValueError(
                f"iterations must be above 0 (got {iterations}); give the iterations of one trial"
            )
        self._iterations, self._seconds = iterations, seconds
        self._trials = Trials(every=every, environment=environment)

    @property
    def problem(self) -> str:
        """Why the latest report failed."""
        return self._trials.problem

    def on_step_end(self, iteration: int, trials: Sequence[Any], **_: Any) -> None:
        """Report after each step of Tune; `Trials` limits the number of reports."""
        self._trials.left(self.left(trials))

    def left(self, trials: Sequence[Any]) -> list[tuple[int, float]]:
        """Return the GPUs of each remaining trial, and the seconds that it still needs."""
        made = [_made(trial) for trial in trials]
        paces = [seconds / count for count, seconds in made if count]
        usual = sum(paces) / len(paces) if paces else self._seconds
        found = []
        for trial, (count, seconds) in zip(trials, made, strict=True):
            if trial.status not in OVER:
                pace = seconds / count if count else usual
                found.append((_gpus(trial), max(0.0, self._iterations - count) * pace))
        return found


def _made(trial: Any) -> tuple[float, float]:
    """Return the number of iterations of a trial so far, and the seconds that they took."""
    result = trial.last_result or {}
    return float(result.get("training_iteration", 0)), float(result.get("time_total_s", 0.0))


def _gpus(trial: Any) -> int:
    """Return the GPUs of a trial as a whole number of at least 1: SIA does not divide GPUs."""
    factory = trial.placement_group_factory
    gpus = 0.0 if factory is None else factory.required_resources.get("GPU", 0.0)
    return max(1, ceil(gpus))
