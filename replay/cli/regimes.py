"""`sia regimes`."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from pathlib import Path
from typing import Any

import click
from msgspec import Struct

from replay.logs.json_file import read_json
from replay.logs.regimes import parse_mode
from sia.console.as_json import json_option, print_json
from sia.console.errors import UserError
from sia.console.groups import Group
from sia.console.tables import show_table
from sia.limits import MAX_REGIME, MAX_TIME
from sia.policies.shockwave.foresight import RULES, ForeseenJob, PredictionRule, Reached, predict
from sia.policies.shockwave.modes import mode_of
from sia.wording import decimal, duration


class _JobFacts(Struct, forbid_unknown_fields=True):
    """The stated regimes of a job, and its progress; see `sia.policies.shockwave.foresight`."""

    id: str | int
    mode: str
    epochs: float | list[float]
    configs: list[str | float]
    seconds: list[float] | dict[str, float]
    regimes: int | None = None
    seen: list[float] = []
    partial: float = 0.0


@click.group(cls=Group)
def regimes() -> None:
    """Predict jobs that change their batch size while they train."""


@regimes.command("predict")
@click.argument("file", type=Path)
@click.option(
    "--rule",
    type=click.Choice(RULES),
    default=RULES[0],
    show_default=True,
    help="How to predict the epochs of each regime.",
)
@json_option("Print all numbers as JSON.")
def predict_(file: Path, rule: PredictionRule, as_json: bool) -> None:
    """Predict the epochs of each regime of the jobs in FILE, their run times and what remains.

    FILE is JSON, a list of {id, mode, epochs, regimes, configs, seconds, seen, partial}: all
    epochs, the number of regimes, each configuration with its seconds an epoch, the whole epochs
    by regime so far, the ongoing one last, and the seconds into the epoch under way.
    """
    found = [_answer(file, job, rule) for job in read_json(file, list[_JobFacts])]
    if as_json:
        print_json(found)
        return
    rows = [
        [
            str(job["id"]),
            " ".join(decimal(epochs, 1) for epochs in job["epochs"]),
            duration(job["total"]),
            duration(job["remaining"]),
        ]
        for job in found
    ]
    show_table("Predicted", ["job", "epochs", "run time", "remaining"], rows)


def _answer(file: Path, job: _JobFacts, rule: PredictionRule) -> dict[str, Any]:
    try:
        prediction = _predicted(job, rule)
    except ValueError as error:
        raise UserError(f"{file}: job {job.id}: {error}") from None
    return {
        "id": job.id,
        "epochs": prediction.epochs,
        "total": prediction.total,
        "remaining": prediction.remaining,
    }


def _predicted(job: _JobFacts, rule: PredictionRule) -> ForeseenJob:
    """Check a job's facts and predict. Raises ValueError with the problem and the fix."""
    mode = mode_of(parse_mode(job.mode))
    configs = [_text(config) for config in job.configs]
    truth = job.epochs if isinstance(job.epochs, list) else []
    epochs = fsum(truth) if isinstance(job.epochs, list) else job.epochs
    each = _seconds(job.seconds, configs)
    stated = len(configs) if job.regimes is None else job.regimes
    if not 1 <= stated <= MAX_REGIME:
        raise ValueError(f"regimes is {stated}; write the number of regimes, 1 to {MAX_REGIME}")
    if problem := mode.problem(configs):
        raise ValueError(f"{problem}; write configs in ascending order, or another mode")
    if not epochs > 0 or not all(part > 0 for part in truth):
        raise ValueError(f"epochs must be above 0 (got {epochs:g}); write all epochs of the job")
    seen = tuple(job.seen) or (0.0,)
    if epochs > MAX_TIME:
        raise ValueError(f"epochs are {epochs:g}; write at most {MAX_TIME:g}")
    if any(count < 0 or count != int(count) for count in seen):
        raise ValueError("seen must be whole numbers of at least 0; write whole epochs by regime")
    if fsum(seen) > epochs or (fsum(seen) == epochs and job.partial > 0):
        raise ValueError(
            f"it has run past its end: {fsum(seen):g} of {epochs:g} epochs are done; "
            "correct seen or epochs"
        )
    if not 0 <= job.partial <= MAX_TIME:
        raise ValueError(f"partial is {job.partial:g}; write seconds of at least 0")
    if rule == "perfect" and not truth:
        raise ValueError(
            "rule perfect needs what really happens; write epochs as a list, one for each regime"
        )
    reached = Reached(seen, job.partial)
    foreseen = predict(rule, epochs, mode.regimes(stated, configs), reached, truth)
    seconds = [
        each[mode.config(place, len(each))] for place in range(max(len(foreseen), len(seen)))
    ]
    run = fsum(map(float.__mul__, seen, seconds)) + job.partial
    return ForeseenJob(foreseen, seconds[: len(foreseen)], run, reached)


def _text(config: str | float) -> str:
    return config if isinstance(config, str) else f"{config:g}"


def _seconds(given: Sequence[float] | dict[str, float], configs: Sequence[str]) -> list[float]:
    """Return the seconds of an epoch in each configuration."""
    if isinstance(given, dict):
        missing = [config for config in configs if config not in given]
        if missing:
            raise ValueError(f"seconds lacks configuration {missing[0]}; add it")
        given = [given[config] for config in configs]
    if not configs or len(given) != len(configs):
        raise ValueError(
            f"{len(given)} seconds for {len(configs)} configs; write one for each configuration"
        )
    if not all(0 < value <= MAX_TIME for value in given):
        raise ValueError(
            f"seconds must be above 0, at most {MAX_TIME:g}; write the seconds of an epoch"
        )
    return [float(value) for value in given]
