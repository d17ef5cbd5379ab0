"""Figures 11 to 13 of JamaisVu on the first jobs of Google's log, with all features.

python -m benchmarks.answers.jvupredict [JOBS]

Estimates of the jobs that FINISHed, by predictor; JamaisVu's pairs of feature and estimator, each
alone and as they are chosen; jobs that outlast their estimates. The pictures are drawn into
`docs/figures/jvupredict`.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from time import process_time

from msgspec import to_builtins

from benchmarks.common import ROOT, TRACES, keep
from predictors.run_times.jvupredict import JVuPredict
from replay.forecast.run_times import PREDICTORS, ended_as, evaluate_pairs, evaluate_run_times
from replay.forecast.run_times_figures import draw_chosen, draw_errors, draw_outside
from replay.logs.importers import google
from sia.limits import WINDOWS

JOBS = 60_000
FIGURES = ROOT / "docs" / "figures" / "jvupredict"


def main() -> None:
    """Evaluate, store and draw."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else JOBS
    began = process_time()
    log = google.read(TRACES / "google2011_jobs.csv.gz", None)[0]
    log = replace(log, arrivals=log.arrivals[:count])
    judged = ended_as(log, "FINISH")
    made = {name: make() for name, make in PREDICTORS.items() if name != "history"}
    scores = evaluate_run_times(log, made, since=0.0, windows=WINDOWS, judged=judged)
    pairs = evaluate_pairs(log, JVuPredict(choice="nrmse"), since=0.0, judged=judged)
    FIGURES.mkdir(parents=True, exist_ok=True)
    figures = {
        "fig11": draw_errors(scores),
        "fig12": draw_outside(pairs),
        "fig13": draw_chosen(pairs),
    }
    for name, drawn in figures.items():
        (FIGURES / f"{name}.svg").write_bytes(drawn.svg)
    keep("answers/jvupredict", {
        "input": f"Google 2011, the first {count} jobs, of which {sum(judged)} FINISHed",
        "cpu_s": round(process_time() - began, 1),
        "scores": {
            name: {
                "within_2x": round(score.within_2x, 4), "within_10x": round(score.within_10x, 4),
                "errors": [round(share, 4) for share in score.errors],
                "outlasting": to_builtins(score.outlasting),
            }
            for name, score in scores.items()
        },
        "outside_2x": {name: round(share, 4) for name, share in pairs.outside_2x.items()},
        "chosen": {name: round(share, 4) for name, share in pairs.chosen.items()},
        "unseen": {name: round(share, 4) for name, share in pairs.unseen.items()},
    })  # fmt: skip


if __name__ == "__main__":
    main()
