"""Prints what `sia forecast` found: a model, a comparison of two, or an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
import msgspec

from replay.logs.trace import Trace
from sia.console.tables import show_table
from sia.wording import as_typed, counted, decimal, duration

if TYPE_CHECKING:
    from predictors.learning.model import Model, Scores
    from replay.forecast.evaluate import Evaluation
    from replay.forecast.train import Comparison

HEADER = ["precision", "recall", "F", "% with arrivals", "predictions"]
COVERED = {
    "stated": "% stated",
    "covered": "% covered",
    "covered_as_learned": "% as learned",
    "nothing_came": "% without any",
}
INSIDE = {"coverage": "% known", "within_2x": "% within 2x", "within_10x": "% within 10x"}


def model_facts(model: Model) -> dict[str, Any]:
    """Return the training span of a model, and its scores on the held-out days, by window."""
    manifest = model.manifest
    return {
        "since_s": manifest.since,
        "until_s": manifest.until,
        "windows": [
            {"window_s": window, "threshold": of.threshold, **_scores(of.scores)}
            for window, of in zip(manifest.windows, manifest.learned, strict=True)
        ],
    }


def _scores(scores: Scores) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(scores)
    return found


def compared_facts(compared: Comparison) -> dict[str, Any]:
    """Return the scores of a new and an old model on the newest days, by window."""
    models = {"new": compared.of_new, "old": compared.of_old}
    return {
        "promoted": compared.better,
        **{
            name: [
                {"window_s": of.window, **_scores(of.scores), "load_loss": of.pinball}
                for of in judged
            ]
            for name, judged in models.items()
        },
    }


def show_left_out(trace: Trace) -> None:
    """Print which rows of the log were skipped."""
    for reason, count in sorted(trace.dropped.items()):
        click.echo(f"dropped: {counted(count, 'job')} {reason}")
    for note in trace.notes:
        click.echo(f"note: {note}")


def _cells(scores: Mapping[str, Any]) -> list[str]:
    return [
        *(decimal(scores[key]) for key in ("precision", "recall", "f")),
        decimal(100 * scores["positives"] / max(1, scores["n"]), 1),
        f"{scores['n']:,}",
    ]


def show_model(model: Model) -> None:
    """Print the scores on the held-out days."""
    manifest = model.manifest
    rows = [
        [as_typed(window), *_cells(_scores(of.scores))]
        for window, of in zip(manifest.windows, manifest.learned, strict=True)
    ]
    span = duration(manifest.until - manifest.since)
    show_table(f"Learned from {span}; scores on its last part", ["within", *HEADER], rows)
    for window, of in zip(manifest.windows, manifest.learned, strict=True):
        if not of.scores.positives:
            click.echo(
                f"note: nothing arrived within {as_typed(window)} in the days held out, so that "
                "arrivals will always be expected"
            )


def show_compared(compared: Comparison) -> None:
    """Print the scores of both models on the newest days, and which one is better."""
    rows = [
        [as_typed(of.window), name, *_cells(_scores(of.scores)), decimal(of.pinball, 3)]
        for judged in zip(compared.of_new, compared.of_old, strict=True)
        for name, of in zip(("new", "old"), judged, strict=True)
    ]
    show_table("On the newest days", ["within", "model", *HEADER, "load's loss"], rows)
    click.echo(_verdict(compared))


def _verdict(compared: Comparison) -> str:
    """Describe which model is better, and by how much."""
    f, loss = compared.f, compared.loss
    which = "is better" if compared.better else "is no better and was not written"
    return (
        f"the new model {which}: F {f[0]:.3f} against {f[1]:.3f}, load's loss {loss[0]:.4f} "
        f"against {loss[1]:.4f}, on average over the windows"
    )


def show_evaluation(found: Evaluation) -> None:
    """Print the most important tables; the report has all."""
    for note in found.notes:
        click.echo(f"note: {note}")
    if found.arrivals is not None:
        rows = [
            [as_typed(row["window_s"]), row["feature_set"], *_cells(row)]
            for row in found.arrivals.table
        ]
        show_table("Will jobs arrive?", ["within", "foretold from", *HEADER], rows)
        levels = [
            [as_typed(row["window_s"]), *(decimal(100 * row[key], 1) for key in COVERED)]
            for row in found.arrivals.reliability
        ]
        show_table("How many GPUs at most?", ["within", *COVERED.values()], levels)
    if found.run_times:
        rows = [
            [row["predictor"], f"{row['n']:,}", *(decimal(100 * row[key], 1) for key in INSIDE)]
            for row in found.run_time_rows()
        ]
        show_table("How long will jobs run?", ["foretold by", "jobs", *INSIDE.values()], rows)
