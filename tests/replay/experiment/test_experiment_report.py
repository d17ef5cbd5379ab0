"""An experiment's report: whole in itself, the same bytes, right in its medians, honest at 0."""

import os
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from math import log10, prod
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import pytest
from matplotlib.figure import Figure

from replay.experiment import figures as drawing
from replay.experiment import frontier as worth
from replay.experiment.frontier import Frontier, FrontierCurve, frontier
from replay.experiment.measures import MEAN, SLOWED, TOTAL, Experiment, brief, spread
from replay.experiment.report import write_experiment_report
from replay.logs.limits import POINTS_DRAWN
from replay.plotting import canvas
from replay.plotting.canvas import DASHES, PALETTE, TIMES, PolicyStyle, looks
from replay.report.provenance import predictors_of
from replay.run.run import Settings
from tests.replay.report.test_report import HOSTILE, Tags, svgs
from tests.support.pictures import blank_pictures

pytestmark = [
    pytest.mark.xdist_group("experiment_report"),
    pytest.mark.usefixtures("blank_pngs"),
]


def gave(
    speed: float | None = 1.0,
    slowed: int = 0,
    late: float = 0.0,
    *,
    lent: float = 0.0,
    never: int = 0,
) -> dict:
    """What a policy gave in a run of 200 jobs: `late` are minutes, and those of the worst job."""
    speeds = {f"speedup_{key}": speed for key in ("mean", "geomean", "p5", "p50", "p90", "p95")}
    return speeds | {
        "measured": 0 if speed is None else 200,
        "slowed": slowed,
        "slowed_pct": None if speed is None else slowed / 2,
        "slowdown_total_min": late,
        "slowdown_max_min": late,
        "never_ended": never,
        "utilisation_pct": 60.0,
        "gpu_hours_lent": lent,
        "avg_jct_s": None if speed is None else 3600 / speed,
        "baseline_avg_jct_s": None if speed is None else 3600.0,
        "baseline_never_ended": 0,
        "interruptions": 0,
        "gpu_hours_thrown_away": 0.0,
        "hourly_pct": [50.0, 70.0],
    }


def shared(values: dict) -> dict:
    """What pool p0 lends to p1 in that run; jobs of one GPU wait as long as they take."""
    jobs, wait = values["measured"], values["avg_jct_s"] or 0.0
    none = {"gpus": 8, "gpu_hours_lent": 0.0, "gpu_hours_borrowed": 0.0, "measured": 0,
            "sooner_total_s": 0.0, "slowed": 0, "worst_delay_s": 0.0}  # fmt: skip
    got = {
        "gpu_hours_borrowed": values["gpu_hours_lent"],
        "measured": jobs,
        "sooner_total_s": jobs * ((values["baseline_avg_jct_s"] or 0.0) - wait),
        "slowed": values["slowed"],
        "worst_delay_s": 60 * values["slowdown_max_min"],
    }
    return {
        "pools": {"p0": {**none, "gpu_hours_lent": values["gpu_hours_lent"]}, "p1": none | got},
        "waits": [["p1", jobs, jobs * wait]] if jobs else [],
        "widths": [[1, jobs, jobs * wait]] if jobs else [],
    }


PEAKS = "sia@peaks:0.95+survival:0.9"


def run(number: int, queues: int = 4, *, size: float = 1.0, withdrawn=(), **policies: dict) -> dict:
    """A run.json; dashes of a label are written as underscores."""
    pools = [{"pool": f"p{i}", "quota": 8, "load": 0.8, "jobs": 50} for i in range(queues)]
    named = {label.replace("_", "-"): values for label, values in policies.items()}
    return {
        "run": number,
        "seed": 7,
        "queues": queues,
        "size": size,
        "withdrawn": list(withdrawn),
        "from_s": 5.0,
        "length_s": 1209600.0,
        "warmup_s": 172800.0,
        "pools": pools,
        "jobs": 200 + number,
        "dropped": {"wider than its pool": number} if number else {},
        "policies": named,
        "sharing": {
            "possible": queues > 1,
            "policies": {label: shared(values) for label, values in named.items()},
        },
    }


def pieces() -> list[dict]:
    """Three runs: mmfs slows jobs in two of them, sia in none."""
    return [
        run(0, 2, fcfs=gave(), mmfs=gave(4.0, 10, 90.0, lent=5), sia=gave(2.0, lent=1)),
        run(1, 8, fcfs=gave(), mmfs=gave(8.0, lent=5), sia=gave(3.0, lent=1)),
        run(2, 2, fcfs=gave(), mmfs=gave(9.0, 40, 6000.0, lent=5), sia=gave(7.0, lent=1)),
    ]


def sizes() -> list[dict]:
    return [
        run(2 * i + j, 5, size=size, withdrawn=away, mmfs=gave(2.0 + i, 1, 3.0), sia=gave(1.5 + i))
        for i, size in enumerate((0.9, 1.0, 1.1))
        for j, away in enumerate(((), ("p0", "p3")))
    ]


def written(folder: Path, runs: list[dict], **settings) -> tuple[str, set[str]]:
    """The page, and the names of the files of pictures."""
    folder.mkdir(exist_ok=True)
    write_experiment_report(folder, runs, settings)
    names = {path.name for path in (folder / "figures").iterdir()}
    assert {Path(name).with_suffix(".png").name for name in names} <= names
    assert {Path(name).with_suffix(".svg").name for name in names} <= names
    html = (folder / "report.html").read_text(encoding="utf-8")
    return html, {Path(name).stem for name in names}


@pytest.fixture(scope="module")
def of_pieces(tmp_path_factory) -> tuple[str, set[str], Path]:
    """The page of three runs, the names of its pictures, and where it is, with large pictures."""
    folder = tmp_path_factory.mktemp("pieces")
    return *written(folder, pieces()), folder


@pytest.fixture
def blank_pngs(monkeypatch):
    """Two thousand pixels take their time, and only one test counts them."""

    def saved(name, height, draw, *forms):
        drawn = iter(DRAWN(name, height, draw, *(f for f in forms if f["format"] == "svg")))
        return [next(drawn) if form["format"] == "svg" else b"" for form in forms]

    monkeypatch.setattr(canvas, "_saved", saved)


DRAWN = canvas._saved


def words(folder: Path, runs: list[dict], **settings) -> str:
    """The text of the page, whose pictures are blank."""
    with blank_pictures():
        return Tags(written(folder, runs, **settings)[0]).text


def test_the_report_needs_nothing_else(of_pieces):
    html, *_ = of_pieces
    named = re.sub(r'xmlns(:\w+)?="http://www\.w3\.org/[^"]*"', "", html)
    assert not re.search(r"https?:|//\w|@import|url\((?!#)", named)
    page = Tags(html)
    assert not page.tags.keys() & {"script", "link", "img", "iframe", "object", "base", "form"}
    assert not [name for name, _ in page.attributes if name.startswith("on") or name == "src"]
    ids = Counter(value for name, value in page.attributes if name == "id")
    assert max(ids.values()) == 1
    assert len(svgs(html)) > 3


def test_same_runs_same_bytes_in_whatever_order(tmp_path: Path, monkeypatch):
    """In a process of its own, with another hash seed, and in this one."""
    runs = pieces()
    for some in runs:
        some["policies"] |= {label: gave(1.5, 1, 2.0) for label in (PEAKS, f"{PEAKS}+guard")}
    (tmp_path / "turned.json").write_bytes(msgspec.json.encode(runs[::-1]))
    code = (
        "import sys; from pathlib import Path; import msgspec\n"
        "from replay.experiment import figures, frontier\n"
        "from replay.experiment.report import write_experiment_report as write\n"
        "figures.PAPER_DPI = frontier.PAPER_DPI = 20\n"
        "write(Path(sys.argv[2]), msgspec.json.decode(Path(sys.argv[1]).read_bytes()), {})"
    )
    for name in ("runs", "turned"):
        (tmp_path / name).mkdir()
    subprocess.run(
        [sys.executable, "-c", code, tmp_path / "turned.json", tmp_path / "turned"],
        env={**os.environ, "PYTHONHASHSEED": "2"},
        check=True,
    )
    monkeypatch.setattr(canvas, "_saved", DRAWN)
    for module in (drawing, worth):
        monkeypatch.setattr(module, "PAPER_DPI", 20)
    write_experiment_report(tmp_path / "runs", msgspec.json.decode(msgspec.json.encode(runs)), {})
    one, other = (
        {
            str(p.relative_to(tmp_path / name)): p.read_bytes()
            for p in (tmp_path / name).rglob("*.*")
        }
        for name in ("runs", "turned")
    )
    assert len(one) == 13  # five pictures twice, the frontier's points, the verdict, and the page
    assert one == other


def test_headlines_say_whom_each_policy_slowed_and_by_how_much(of_pieces):
    text = Tags(of_pieces[0]).text
    assert (
        f"mmfs slowed jobs in 2 of 3 runs; mean speed-up 8.00{TIMES} (6.00–8.50{TIMES}) some jobs "
        "ran later"
    ) in text
    assert "Jobs slowed: 5.00 % (2.50–12.50 %), in total by 90 min (45 min – 2.1 d)" in text
    assert "The largest slowdown of a job, 4.2 d, occurred in run 2 (2 queues)." in text
    assert f"sia slowed no job in 3 of 3 runs; mean speed-up 3.00{TIMES}" in text
    assert "Slowed no job in any run: sia. Jobs were slowed by mmfs in 2 of 3 runs." in text
    assert "2 queues: mmfs has the highest mean speed-up in the median run, 6.50" in text


def test_the_table_has_medians_of_each_number_of_queues(of_pieces):
    text = Tags(of_pieces[0]).text
    table = text[text.index("Comparison of policies") : text.index("Distributions over all runs")]
    two, eight = table.split("8 queues")
    assert f"mmfs 6.50{TIMES} 5.25–7.75{TIMES}" in two
    assert "2 of 2 12.50 % 8.75–16.25 %" in two
    assert f"mmfs 8.00{TIMES} 8.00{TIMES} 8.00{TIMES} 8.00{TIMES} 0 of 1 0.00 % 0 s 0 s" in eight


def test_pieces_have_the_papers_figures(of_pieces):
    html, names, _ = of_pieces
    assert names == {"fig02", "fig13", "fig14"}
    assert "SIA by what it foresees with" not in html
    assert "What forecasts are worth" not in html


@pytest.mark.parametrize(
    ("labels", "drawn"),
    [
        (["sia", "sia-vc"], True),
        (["sia@random+history", "sia@perfect+perfect", "mmfs"], True),
        (["sia", "mmfs", "siamese"], False),
    ],
)
def test_the_ablation_needs_two_variants_of_sia(tmp_path: Path, labels: list[str], drawn):
    runs = [run(i, **{label: gave(2.0) for label in labels}) for i in range(2)]
    with blank_pictures():
        assert ("fig15a" in written(tmp_path / "out", runs)[1]) is drawn


def test_a_whole_log_at_several_sizes_has_figure_18_and_table_17(tmp_path: Path):
    html, names = written(tmp_path / "out", sizes(), sizes=[0.9, 1.0, 1.1])
    assert names == {"fig02", "fig18", "fig18-withdrawn"}
    text = Tags(html).text
    table = text[text.index("size 1 mmfs") : text.index("size 1.1 mmfs")]
    assert re.search(rf"mmfs 3\.00{TIMES} .* sia 2\.50{TIMES} .* mmfs ♣ .* sia ♣ ", table)
    assert "1 of 1 0.50 % 3.0 min 3.0 min" in table
    assert f"mmfs slowed jobs in 6 of 6 runs; mean speed-up 2.00–4.00{TIMES}" in text
    assert "occurred in run 0 (size 0.9)" in text
    assert "p0, p3" in text


def test_a_single_size_is_shown_as_a_table(tmp_path: Path):
    html, names = written(tmp_path / "out", [run(0, mmfs=gave(2.0))], sizes=[1.0])
    assert names == {"fig02"}
    assert f"mmfs slowed no job in 1 of 1 run; mean speed-up 2.00{TIMES}" in Tags(html).text


def test_pictures_that_are_no_longer_drawn_go(tmp_path: Path):
    with blank_pictures():
        written(tmp_path / "out", sizes())
        (tmp_path / "out" / "figures" / "mine.png").write_text("mine")
        write_experiment_report(tmp_path / "out", pieces(), {})
    names = {path.stem for path in (tmp_path / "out" / "figures").iterdir()}
    assert names == {"fig02", "fig13", "fig14", "mine"}


@pytest.mark.parametrize("name", [HOSTILE, "$\\frac{1}{", "]]>--><!--", "_x", "\x01\n", "池" * 50])
def test_hostile_names_stay_text(tmp_path: Path, name: str):
    some = run(0, size=0.9, withdrawn=[name], fcfs=gave(), **{name: gave(2.0, 1, 1.0, lent=1)})
    some["dropped"] = {name: 3}
    other = run(1, size=1.0, fcfs=gave(), **{name: gave(2.0)})
    html, _ = written(tmp_path / "out", [some, other], **{name: name})
    assert "<script" not in html
    svgs(html)
    assert " ".join(name.replace("_", "-").split()) in Tags(html).text


def test_runs_in_which_no_job_was_measured_are_left_out(tmp_path: Path):
    runs = [run(4, fcfs=gave(None), mmfs=gave(None)), run(1, fcfs=gave(), mmfs=gave(5.0, 2, 8.0))]
    text = Tags(written(tmp_path / "out", runs)[0]).text
    assert f"mmfs slowed jobs in 1 of 1 run; mean speed-up 5.00{TIMES}" in text
    assert "Jobs slowed: 1.00 %, in total by 8.0 min." in text
    assert "Runs omitted, no job measured 4" in text
    nothing = Tags(written(tmp_path / "none", runs[:1])[0]).text
    assert "mmfs no job was measured in any run" in nothing
    assert "ran later" not in nothing


def test_an_experiment_with_only_the_baseline_is_reported(tmp_path: Path):
    html, names = written(tmp_path / "out", [run(0, fcfs=gave())])
    assert "Only the baseline was run" in html
    assert names == {"fig02"}


def test_jobs_that_never_ended_are_told(tmp_path: Path):
    runs = [run(0, fcfs=gave(never=1), mmfs=gave(2.0, never=3))]
    assert "3 jobs never ended, 1 in the baseline." in Tags(written(tmp_path, runs)[0]).text


def test_the_report_says_who_knew_the_future(tmp_path: Path):
    labels = ("mmfs", "sia", "sia@sliding-max+history", "sia-vc")
    runs = [run(0, **{label: gave(2.0) for label in labels})]
    text = words(tmp_path / "out", runs)
    assert "These policies knew the future, unlike a live system: sia, sia-vc" in text
    guessed = Experiment(runs, {"forecast": "sliding-max", "durations": "history"})
    assert [name for name in labels if guessed.foresees(name)] == ["sia-vc"]


def compared(runs: list[dict], **settings) -> Frontier | None:
    return frontier(Experiment(runs, settings))


def forecasts() -> list[dict]:
    """Perfect forecasts gain 2 ** (2 + 4), peaks 2 ** (0 + 3), max-min 2 ** (3 - 2)."""
    return [
        run(0, mmfs=gave(8.0, 20, 600.0), sia=gave(4.0), **{PEAKS: gave(1.0)}),
        run(1, mmfs=gave(0.25, 60, 1800.0), sia=gave(16.0), **{PEAKS: gave(8.0, 1, 3.0)}),
    ]


def test_captured_gain_is_a_ratio_of_logarithms_summed_over_runs():
    found = compared(forecasts())
    assert [point.label for point in found.points] == ["mmfs", "sia", PEAKS]
    mmfs, best, peaks = found.points
    assert mmfs == ("mmfs", pytest.approx(1 / 6), 20.0, 30.0, 1200.0, 1800.0, 0, 2)
    assert best == ("sia", 1.0, 0.0, 0.0, 0.0, 0.0, 2, 2)
    assert peaks == (PEAKS, pytest.approx(3 / 6), 0.25, 0.5, 1.5, 3.0, 1, 2)


def test_captured_gain_does_not_depend_on_how_runs_are_cut():
    """The logarithm of all runs' speed-ups multiplied, in another base."""
    rng = Random(3)
    for _ in range(50):
        speeds = [(rng.uniform(0.2, 30), rng.uniform(1.5, 40)) for _ in range(rng.randint(1, 9))]
        runs = [
            run(i, sia=gave(most), **{PEAKS: gave(own)}) for i, (own, most) in enumerate(speeds)
        ]
        own, most = (prod(column) for column in zip(*speeds, strict=True))
        assert compared(runs).points[1].captured == pytest.approx(log10(own) / log10(most))


def test_the_frontier_is_drawn_and_told(tmp_path: Path):
    html, names = written(tmp_path / "out", forecasts())
    assert "frontier" in names
    text = Tags(html).text
    section = text[text.index("Value of forecasts") : text.index("GPU utilisation without")]
    assert f"{PEAKS} 0.50 0.25 % 0.50 % 90 s 3.0 min 1 of 2" in section
    assert "mmfs 0.17 20.00 % 30.00 % 20 h 30 h 0 of 2" in section
    assert "No forecast that a live system could make is on target" in section
    assert f"Mean total slowdown of a run: 90 s under {PEAKS}, 20 h under mmfs." in text
    rows = msgspec.json.decode((tmp_path / "out" / "frontier.json").read_bytes())
    assert [row["label"] for row in rows] == ["mmfs", "sia", PEAKS]
    assert rows[2] == {
        "label": PEAKS, "captured": pytest.approx(0.5), "slowed_pct_mean": 0.25,
        "slowed_pct_most": 0.5, "slowdown_min_mean": 1.5, "slowdown_min_most": 3.0,
        "runs_nobody_slowed": 1, "runs": 2,
    }  # fmt: skip
    written(tmp_path / "out", pieces())
    assert not (tmp_path / "out" / "frontier.json").exists()
    assert not (tmp_path / "out" / "figures" / "frontier.svg").exists()


@pytest.mark.parametrize(
    ("labels", "settings", "reference"),
    [
        (["sia", PEAKS], {}, "sia"),
        (["sia@perfect+perfect", "sia"], {"durations": "history"}, None),
        (
            ["sia@perfect+perfect", "sia"],
            {"forecast": "peaks", "durations": "history"},
            "sia@perfect+perfect",
        ),
        (["sia", "sia@none+history"], {"load_quantile": 0.9}, "sia"),
        (["sia", "mmfs"], {}, None),
        ([PEAKS, "mmfs"], {}, None),
        (["sia", "sia-vc", "sia@perfect+perfect"], {}, None),
        (["sia", "sia@perfect+survival"], {}, None),
        (["sia", "ssf@peaks+survival"], {}, None),
        (["sia", PEAKS], {"durations": "history"}, None),
        (["sia@perfect+perfect+guard", PEAKS], {}, None),
        (["sia", PEAKS], {"max_slowed_pct": 0.1}, None),
        (["sia", "sia@peeks+survival", HOSTILE], {}, None),
    ],
)
def test_the_frontier_needs_sia_with_the_future_and_without(labels, settings, reference):
    runs = [run(0, **dict.fromkeys(labels, gave(2.0)))]
    found = compared(runs, **settings)
    assert (found and found.reference) == reference


def test_no_gain_is_captured_if_perfect_forecasts_gain_nothing():
    assert compared([run(0, sia=gave(1.0), **{PEAKS: gave(1.1)})]) is None


def test_runs_in_which_either_measured_nothing_do_not_count():
    runs = [*forecasts(), run(2, sia=gave(None), **{PEAKS: gave(9.0)}), run(3, sia=gave(9.0))]
    [*_, peaks] = compared(runs).points
    assert peaks == compared(forecasts()).points[-1]
    runs = [run(0, sia=gave(2.0), **{PEAKS: gave(None), "sia@none+history": gave(2.0)})]
    assert [point.label for point in compared(runs).points] == ["sia", "sia@none+history"]


def test_labels_that_differ_only_in_caution_are_one_curve():
    labels = [
        "sia@peaks:0.8+survival", "sia@peaks:0.99+survival:0.8", "sia@peaks+survival",
        "sia@peaks+survival+guard:2", "sia@peaks+survival+guard", "sia@learned:0.9+jvupredict:0.9",
        "sia@learned+jvupredict", "sia@learned:0.95+jvupredict:0.9", "sia@sliding-max+history:0.5",
        "sia@peaks:0.9+perfect",
    ]  # fmt: skip
    found = compared([run(0, sia=gave(2.0), **dict.fromkeys(labels, gave(2.0)))])
    assert [(curve.name, list(curve.quantiles), curve.guarded) for curve in found.curves] == [
        ("peaks:q+survival:q", ["0.95, 0.88", "0.99, 0.8", "0.8, 0.88"], False),
        ("peaks:q+survival:q+guard", ["0.95, 0.88", "0.95, 0.88"], True),
        ("learned:q+jvupredict:q", ["0.95, 0.9", "0.9, 0.9"], False),
        ("learned+jvupredict", [""], False),
        ("sliding-max+history:q", ["0.5"], False),
        ("peaks:q+perfect", ["0.9"], False),
    ]
    guarded = [point.label for point in found.curves[1].points]
    assert guarded == ["sia@peaks+survival+guard", "sia@peaks+survival+guard:2"]
    assert {point.label for point in found.honest} == {*labels[:-1]}


@pytest.mark.parametrize("chance", ["sia@random+survival", "sia@peaks+random+guard"])
def test_a_coin_flip_is_no_forecast_to_rely_on(chance):
    labels = ["sia", PEAKS, chance]
    found = compared([run(0, sia=gave(2.0), **{PEAKS: gave(1.5), chance: gave(1.9)})])
    assert [point.label for point in found.points] == labels
    assert [point.label for point in found.honest] == [PEAKS]
    assert found.best.label == PEAKS


def test_a_pair_of_forecasts_has_a_colour_of_its_own_whoever_watches():
    labels = ["mmfs", "sia", PEAKS, f"{PEAKS}+guard", "sia@none+history"]
    experiment = Experiment([run(0, **dict.fromkeys(labels, gave(2.0)))], {})
    colours = worth._colours(frontier(experiment), experiment)
    assert list(colours) == ["mmfs", "sia", "peaks:q+survival:q", "none+history:q"]
    assert len(set(colours.values())) == 4
    assert colours["mmfs"] == experiment.looks["mmfs"].colour


def test_the_best_forecast_is_on_target_if_any_is():
    slowing = {"sia@peaks:0.5+survival": 3, "sia@none+history": 0, "sia@peaks:0.9+history": 0}
    speeds = dict(zip(slowing, (12.0, 6.0, 5.0), strict=True))
    runs = [
        run(i, sia=gave(16.0), **{label: gave(speeds[label], n) for label, n in slowing.items()})
        for i in range(3)
    ]
    assert compared(runs).best.label == "sia@none+history"
    for some in runs:  # now it captures less than half
        some["policies"]["sia@none+history"] = gave(3.9)
    assert compared(runs).best.label == "sia@peaks:0.9+history"
    runs[0]["policies"]["sia@peaks:0.9+history"] = gave(5.0, 1)
    assert compared(runs).best.label == "sia@none+history"


def test_values_beyond_the_frame_are_drawn_at_its_edge_with_a_number():
    point = compared(forecasts()).points[0]
    scale, axes = drawing.scale_of("percent", [np.array([0.1, 20.0])]), axes_of()
    points = [point._replace(captured=4.25, slowed_pct_mean=0.0)]
    worth._draw_curve(axes, FrontierCurve("mmfs", "D", points), scale, "#000000", (0.0, 1.1))
    [line] = axes.lines
    assert line.get_xydata().tolist() == [[scale.zero, 1.1]]
    assert [text.get_text() for text in axes.texts] == ["4.2"]


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("y", [-0.02, 0.0, 0.03, 0.5, 0.97, 1.0, 1.03])
def test_no_line_of_a_level_strikes_a_label_through(y, guarded):
    axes = Figure(figsize=(10, 4)).add_axes((0.1, 0.1, 0.6, 0.85))
    axes.set_ylim(-0.05, 1.15)
    axes.set_xscale("log")
    below = worth._clear_of_levels(axes, y, guarded=guarded)
    points = 72 * 4 * 0.85 / 1.2  # of a captured gain of 1
    for level in (0, 1):
        line = (level - y) * points
        assert not below - 1 < line < below + 6, (line, below)
    assert abs(below) < 24
    if y == 0.5:
        assert below == (-11 if guarded else -3)


def test_hostile_names_are_on_the_frontier_as_they_are(tmp_path: Path):
    strange = [HOSTILE, "_x", "$\\frac{1}{", "sia@peaks:9+survival", "sia@" + "池" * 90]
    runs = forecasts()
    for some in runs:
        some["policies"] |= dict.fromkeys(strange, gave(3.0))
    html, names = written(tmp_path / "out", runs)
    assert "frontier" in names
    assert "<script" not in html
    svgs(html)
    rows = msgspec.json.decode((tmp_path / "out" / "frontier.json").read_bytes())
    assert [row["label"] for row in rows] == ["mmfs", "sia", *strange, PEAKS]


def test_reports_say_by_what_each_policy_foresees():
    settings = Settings([], "peaks", "jvupredict", recent=7, max_slowed_pct=0.2)
    labels = ["mmfs", "ssf", "sia", PEAKS, "sia@learned:0.9+history:0.8", "sia@learned+random",
              "sia@sliding-max+survival+guard", "from elsewhere"]  # fmt: skip
    found = predictors_of(settings, labels)
    peaks = "peaks: the most GPUs that new jobs held at once in recent windows"
    model = "learned: a model predicts"
    sliding, recent = "sliding-max: the highest load seen in recent windows", "over 7 windows"
    much = "the highest recent load how many GPUs"
    often = "{} quantile"
    jvupredict = "jvupredict: estimated from ended jobs with the most specific feature in common"
    history = "history: guessed from earlier jobs of the same name, or user, pool and width"
    survival = "survival: the first window that similar jobs, ended and running, rarely outlast"
    guard = "reduces lending when over {} % of a pool's jobs were slowed"
    loads = [words for title, words in found if title == "Load forecast"]
    run_times = [words for title, words in found if title == "Run times"]
    assert loads == [
        f"{peaks}, 0.95 quantile (sia, {PEAKS})",
        f"{model} the maximum of arriving GPUs, {often.format(0.9)} (sia@learned:0.9+history:0.8)",
        f"{model} whether jobs arrive, {much}, {recent} (sia@learned+random)",
        f"{sliding}, {recent} (sia@sliding-max+survival+guard)",
    ]
    assert run_times == [
        f"{jvupredict} (ssf, sia)",
        f"{survival}, {often.format(0.9)} ({PEAKS})",
        f"{history}, {often.format(0.8)} (sia@learned:0.9+history:0.8)",
        "random: a duration bin was drawn for each job (sia@learned+random)",
        f"{survival}, {often.format(0.88)} (sia@sliding-max+survival+guard)",
    ]
    assert found[len(loads) + len(run_times) :] == [
        ("Share controller", f"{guard.format(0.2)} (sia)"),
        ("Share controller", f"{guard.format(0.1)} (sia@sliding-max+survival+guard)"),
    ]


def test_an_experiments_report_says_what_its_settings_mean(tmp_path: Path):
    """Fig. 15a's variants: the label alone does not say by what `sia` foresees here."""
    labels = ("sia", "sia@random+jvupredict", "sia@random+random", "sia@perfect+perfect", "sia-vc")
    settings = {"forecast": "learned", "durations": "jvupredict", "run_time_quantile": 0.95}
    html, names = written(tmp_path, [run(0, **dict.fromkeys(labels, gave(2.0)))], **settings)
    assert {"fig15a", "frontier"} <= names
    text = Tags(html).text
    assert f"sia (learned+jvupredict): mean speed-up 2.00{TIMES} in the median run" in text
    assert f"sia-vc: mean speed-up 2.00{TIMES}" in text
    assert "feature in common, 0.95 quantile (sia)" in text
    assert (
        "These policies knew the future, unlike a live system: sia@perfect+perfect, sia-vc" in text
    )
    assert "For forecasts that a live system can make" not in text
    assert [e for e in labels if Experiment([], settings).foresees(e)] == [*labels[3:]]


def test_an_experiments_report_says_where_jobs_lie_and_who_stops_them(tmp_path: Path):
    settings = {"cells_sha256": "0a", "cells": "node of 8 gpu, 8 GPUs a node"}
    settings |= {"preemptible": [30.0, 300.0], "recall": 0.25, "resume_cost_s": 0.0}
    runs = [run(0, **{"sia-recall": gave(2.0), "mmfs": gave(2.0)})]
    text = words(tmp_path, runs, **settings)
    assert "Cells node of 8 gpu, 8 GPUs a node; pools own whole nodes; a job's GPUs are" in text
    assert "rounding its width up stay unused" in text
    assert (
        "Preemption by sia-recall; a random 30 % of the jobs is preemptible, at a cost of" in text
    )
    assert "Recall relies on preempting spare jobs if this costs up to 25 % of a window" in text
    plain = words(tmp_path, [run(0, mmfs=gave(2.0))])
    assert "Preemption" not in plain
    assert "Cells" not in plain


def test_a_png_is_2000_pixels_wide_and_says_nothing_of_when_or_where(of_pieces):
    png = (of_pieces[-1] / "figures" / "fig13.png").read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(png[16:20]) == 2000
    assert not re.search(rb"tEXt|tIME|iTXt", png)


def test_thirty_policies_have_looks_of_their_own():
    chosen = looks(["fcfs", *map(str, range(30))], "fcfs")
    assert len(set(chosen.values())) == 31
    assert len(PALETTE) > len(DASHES)


def axes_of():
    return Figure().add_axes((0, 0, 1, 1))


@pytest.mark.parametrize("runs", [10, 5 * POINTS_DRAWN])
def test_a_distribution_shows_exactly_how_many_runs_slowed_nobody(runs: int):
    rng = Random(1)
    values = np.array([0.0 if i < 0.3 * runs else rng.lognormvariate(0, 3) for i in range(runs)])
    scale = drawing.scale_of("minutes", [values])
    axes = axes_of()
    drawing._cumulative(axes, scale.place(values), scale.most, PolicyStyle("#000000"), 0)
    x, y = axes.lines[0].get_data()
    assert max(y[x == scale.zero]) == pytest.approx(30)
    assert min(x[x > scale.zero]) > scale.least
    assert (x[-1], y[-1]) == (scale.most, 100)
    assert len(x) <= POINTS_DRAWN + 3


@pytest.mark.parametrize("unit", ["speed", "percent", "minutes"])
def test_every_value_has_a_place_and_ticks_have_room(unit: str):
    rng = Random(2)
    for _ in range(200):
        spread = rng.uniform(0.1, 6)
        values = np.array([rng.lognormvariate(rng.uniform(-3, 9), spread) for _ in range(20)])
        values[:3] = 1.0 if unit == "speed" else 0.0
        scale = drawing.scale_of(unit, [values])
        placed = scale.place(values)
        assert (scale.begin < placed).all()
        assert (placed < scale.most).all()
        if unit != "speed":
            assert (placed[:3] < scale.least).all()
            assert (placed[3:] >= scale.least).all()
        ticks = scale.ticks(3.0)
        assert len(ticks) > 1
        inches = [3.0 * log10(x / scale.begin) / log10(scale.most / scale.begin) for x, _ in ticks]
        assert all(b - a > 0.1 for a, b in pairwise(inches))


def test_boxes_are_quartiles_and_eighths_and_the_rest_are_dots():
    values = np.arange(1.0, 22.0)  # 21 runs: quartiles at 6 and 16, eighths at 3.5 and 18.5
    scale, axes = drawing.scale_of("speed", [values]), axes_of()
    drawing._box(axes, 0, scale, values, "#0072b2")
    ends = sorted((p.get_height(), p.get_x(), p.get_x() + p.get_width()) for p in axes.patches)
    assert [end[1:] for end in ends] == [pytest.approx((3.5, 18.5), rel=0.05),
                                         pytest.approx((6.0, 16.0), rel=0.05)]  # fmt: skip
    dots, median = axes.lines
    assert list(dots.get_xdata()) == [1, 2, 3, 19, 20, 21]
    assert list(median.get_xdata()) == [11, 11]


@pytest.mark.parametrize("draw", [drawing.draw_boxes, drawing.draw_sizes])
def test_a_value_between_0_and_the_least_slowdown_is_not_drawn_at_0(draw, monkeypatch):
    """Half of the runs slow nobody: the median lies between, and so does a quartile elsewhere."""
    scales, place_ticks = [], drawing.logarithmic
    monkeypatch.setattr(
        drawing, "logarithmic", lambda *asked: (scales.append(asked[2]), place_ticks(*asked))
    )
    runs = np.array([0.0] * 4 + [84.0] * 4)
    quarter = np.array([0.0] * 5 + [80.0] * 13)  # whose lower quartile is 20
    values = {"sia": runs} if draw is drawing.draw_sizes else {"sia": runs, "mmfs": quarter}
    looks = {"sia": PolicyStyle("#000000"), "mmfs": PolicyStyle("#aa0000")}
    draw("x", [drawing.MeasurePanel(TOTAL, {"1": values, "2": values})], looks)
    (scale,) = scales
    between = np.array([20.0, 42.0][draw is drawing.draw_sizes :])
    assert (scale.place(between) == between).all()
    assert (between > scale.least).all()
    assert scale.place(np.zeros(1)) < scale.least


def test_few_runs_are_dots():
    values = np.array([0.0, 0.0, 5.0])
    scale, axes = drawing.scale_of("minutes", [values]), axes_of()
    drawing._box(axes, 0, scale, values, "#0072b2")
    assert not axes.patches
    assert list(axes.lines[0].get_xdata()) == [scale.zero, scale.zero, 5.0]


@pytest.mark.parametrize(
    ("minutes", "words"),
    [(0, "0 s"), (1e-6, "6e-05 s"), (0.02, "1.2 s"), (1.5, "90 s"), (2, "2.0 min"),
     (119, "119 min"), (150, "2.5 h"), (47 * 60, "47 h"), (60 * 24 * 40, "40 d"),
     (60 * 24 * 365 * 1234.4, "1,234 y")],
)  # fmt: skip
def test_slowdowns_are_written_in_words(minutes: float, words: str):
    assert brief(minutes) == words


def test_spreads_name_their_unit_once_where_it_is_one():
    runs = [run(i, mmfs=gave(1.0 + i, 2 * i, 50.0 * i)) for i in range(5)]
    assert spread(runs, "mmfs", MEAN) == f"2.00–4.00{TIMES}"
    assert spread(runs, "mmfs", SLOWED) == "1.00–3.00 %"
    assert spread(runs, "mmfs", TOTAL) == "50 min – 2.5 h"
    assert spread(runs[:1], "mmfs", MEAN) == ""
