"""The report: whole in itself, always the same, safe with hostile names, right in its integrals."""

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from replay.logs.limits import POINTS_DRAWN, POOLS_DRAWN
from replay.logs.trace import PoolTable, Trace
from replay.plotting import canvas
from replay.plotting.canvas import TIMES
from replay.plotting.numbers import hours, speed
from replay.report.report import time_lines, write_report
from replay.report.terminal import show_aims, show_pools
from replay.run.arrays import Replayed
from replay.run.run import Settings
from replay.run.schedule import LoanSpan, Result, Schedule
from replay.run.summary import summarize
from replay.verdict.build import add_verdict
from sia.core.playout import Arrival
from sia.events import PoolChanged
from sia.model import Job, Pool
from sia.wording import NONE, duration
from tests.support.clusters.cells import spec
from tests.support.pictures import blank_pictures

HOSTILE = "<script>alert(1)</script>"


class Story:
    """Jobs of pools, and what became of them under the baseline and further policies."""

    def __init__(self, *pools: Pool, changes: tuple[PoolChanged, ...] = (), **trace) -> None:
        self.table = PoolTable(list(pools), list(changes))
        self.trace = Trace([], **trace)
        self.schedules: dict[str, Schedule] = {}

    def job(self, submit: float, width: int, duration: float, **starts: float | None) -> "Story":
        """Add a job; `starts` are by policy, `fcfs` that of the baseline."""
        i = len(self.trace.arrivals)
        pool = self.table.pools[i % len(self.table.pools)].name
        self.trace.arrivals.append(Arrival(Job(f"j{i}", pool, submit, width), duration))
        for policy, start in starts.items():
            schedule = self.schedules.setdefault(policy.replace("_", "-"), Schedule("", [], [], []))
            schedule.starts.append(start)
            schedule.ends.append(None if start is None else start + duration)
            schedule.spare.append(False)
        return self

    def lend(self, policy: str, donor: str, i: int) -> "Story":
        """Have that job run on the donor's GPUs."""
        (job, duration), schedule = self.trace.arrivals[i], self.schedules[policy]
        start = schedule.starts[i]
        schedule.loans.append(LoanSpan(job.id, donor, job.width, start, start + duration))
        schedule.spare[i] = True
        return self

    def parts(self, **settings):
        for name, schedule in self.schedules.items():
            schedule.policy = name
        baseline = self.schedules["fcfs"]
        results = [Result(self.trace, baseline, chosen) for chosen in self.schedules.values()]
        asked = Settings(list(self.schedules), **settings)
        summary = summarize(self.table, asked, results)
        add_verdict(self.table, asked, summary, results)
        return self.table, asked, summary, results

    def report(self, folder: Path, **settings) -> str:
        path = folder / "report.html"
        write_report(path, *self.parts(**settings))
        return path.read_text(encoding="utf-8")

    def words(self, folder: Path, **settings) -> str:
        """The text of the report, whose pictures are blank."""
        with blank_pictures():
            return Tags(self.report(folder, **settings)).text


def lender() -> Story:
    """Pool a lends to the second job of pool b; mmfs makes a's second job late, sia does not."""
    story = Story(Pool("a", 4), Pool("b", 2), dropped=Counter({"wider than its pool": 3}))
    story.trace.notes.append("rows were not in order & have been sorted")
    story.job(0, 2, 500, fcfs=0, mmfs=0, sia=0).job(10, 2, 900, fcfs=10, mmfs=10, sia=10)
    story.job(600, 4, 300, fcfs=600, mmfs=660, sia=600).job(620, 2, 40, fcfs=910, mmfs=620, sia=900)
    story.job(1000, 1, 60, fcfs=1000, mmfs=1000, sia=1000)
    return story.lend("mmfs", "a", 3).lend("sia", "a", 3)


class Tags(HTMLParser):
    """Collects the tags, attributes and text of a page, and finds what is not closed."""

    VOID = ("meta", "br")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += " " + data


def svgs(html: str) -> list[ET.Element]:
    """All pictures, each read as XML: so each is well formed."""
    return [ET.fromstring(svg) for svg in re.findall(r"<svg .*?</svg>", html, re.DOTALL)]


def test_report_needs_nothing_else(tmp_path: Path):
    html = lender().report(tmp_path)
    named = re.sub(r'xmlns(:\w+)?="http://www\.w3\.org/[^"]*"', "", html)
    assert not re.search(r"https?:|//\w|@import|url\((?!#)", named)
    page = Tags(html)
    assert not page.tags.keys() & {"script", "link", "img", "iframe", "object", "base", "form"}
    assert not [name for name, _ in page.attributes if name.startswith("on") or name == "src"]
    ids = Counter(value for name, value in page.attributes if name == "id")
    assert max(ids.values()) == 1


def test_the_page_allows_its_pictures_of_nodes_and_nothing_from_elsewhere(tmp_path: Path):
    story = Story(Pool("a", 16)).job(0, 4, 60, fcfs=0)
    story.schedules["fcfs"].nodes = [(("n0", (0, 1, 2, 3)),)]
    page = Tags(story.report(tmp_path, cells=spec(racks=1, quotas={"a": {"node": 2}})))
    sources = [value for name, value in page.attributes if name == "xlink:href"]
    assert any(value.startswith("data:image/png;") for value in sources)
    (rules,) = [value for _, value in page.attributes if value and "default-src" in value]
    assert dict(rule.split(maxsplit=1) for rule in rules.split(";")) == {
        "default-src": "'none'",
        "style-src": "'unsafe-inline'",
        "img-src": "data:",
    }


def test_same_input_gives_same_bytes(tmp_path: Path):
    assert lender().report(tmp_path) == lender().report(tmp_path)


def test_headlines_say_what_sharing_gave_and_cost(tmp_path: Path):
    text = lender().words(tmp_path)
    mmfs = f"mmfs : mean speed-up 2.42{TIMES}, 1 of 5 jobs slowed, 0.02 GPU-hours lent"
    assert f"{mmfs} some jobs ran later" in text
    sia = f"sia : mean speed-up 1.01{TIMES}, 0 of 5 jobs slowed, 0.02 GPU-hours lent"
    assert f"{sia} no job ran later" in text
    assert "3 wider than its pool" in text
    assert "rows were not in order & have been sorted" in text


def test_the_report_says_where_the_future_was_known(tmp_path: Path):
    assert "unlike a live system" in lender().words(tmp_path)
    guessed = lender().words(tmp_path, forecast="sliding-max", durations="history")
    assert "unlike a live system" not in guessed


def test_slowed_jobs_are_named(tmp_path: Path):
    text = lender().words(tmp_path)
    worst = text[text.index("The 1 largest slowdown") :]
    assert re.search(r"j2 a mmfs 4 day 0\.01 5 m 6 m 1 m 1\.0 ", worst)
    assert "sia : no job was slowed, of 5 measured." in text


def test_without_slowed_jobs_their_picture_is_left_out(tmp_path: Path):
    story = lender()
    del story.schedules["mmfs"]
    html = story.report(tmp_path)
    assert "no job was slowed" in html
    assert "largest slowdown" not in html


def test_slowed_jobs_are_those_of_the_summary():
    rng = Random(5)
    story = Story(Pool("a", 4), Pool("b", 2))
    for i in range(200):
        fcfs, other = (float(i) + rng.choice([0, 0.0005, 0.002, 7]) for _ in range(2))
        story.job(i, 1, rng.uniform(0.1, 9), fcfs=fcfs, ssf=None if i % 50 == 3 else other)
    parts = story.parts(warmup=20.0)
    replayed = Replayed(*parts)
    outcome, measures = replayed.outcomes["ssf"], parts[2]["policies"]["ssf"]
    assert np.count_nonzero(outcome.slowed) == measures["slowed"] > 0
    assert np.count_nonzero(outcome.measured) == measures["measured"] == 177
    assert outcome.lost == measures["never_ended"] == 4


@pytest.mark.parametrize("name", [HOSTILE, "$\\frac{1}{", "]]>--><!--", "_x", "\x01\n", "池" * 50])
def test_hostile_names_stay_text(tmp_path: Path, name: str):
    story = Story(Pool(name, 4), Pool("b", 2))
    story.job(0, 4, 90, fcfs=0, sly=30).job(9, 1, 9, fcfs=9, sly=9)
    story.schedules[name + "!"] = story.schedules.pop("sly")
    story.trace.notes.append(name)
    story.lend(name + "!", "b", 0)
    html = story.report(tmp_path)
    assert "<script" not in html
    pictures = svgs(html)
    assert any(canvas.plain(name, 24) in "".join(svg.itertext()) for svg in pictures)
    assert " ".join(name.split()) in Tags(html).text


@pytest.mark.parametrize("width", [1, 5])
def test_a_report_of_one_pool_one_policy_and_one_job_is_written(tmp_path: Path, width: int):
    html = Story(Pool("a", 5)).job(7, width, 60, fcfs=7).report(tmp_path)
    assert "No policy that shares GPUs was replayed" in html
    assert f"5 GPUs: {20 * width}.0 % used by itself, 0.0 % lent" in Tags(html).text


def test_a_report_without_measured_jobs_says_so(tmp_path: Path):
    text = Tags(lender().report(tmp_path, warmup=1e6)).text
    assert "sia : no job was measured" in text
    assert "No job was measured." in text


def test_jobs_that_never_start_are_reported(tmp_path: Path):
    story = Story(Pool("a", 4)).job(0, 4, 60, fcfs=0, gssf=None).job(5, 4, 60, fcfs=60, gssf=0)
    text = Tags(story.lend("gssf", "a", 1).report(tmp_path)).text
    assert "1 job never ended, but would have in the baseline" in text
    assert "some jobs ran later" in text
    nothing = Story(Pool("a", 4)).job(0, 4, 60, fcfs=None).job(5, 4, 60, fcfs=None)
    assert "No job was measured" in nothing.report(tmp_path)


def test_a_report_without_jobs_is_written(tmp_path: Path):
    story = Story(Pool("a", 4))
    story.schedules["fcfs"] = Schedule("", [], [], [])
    assert "No job was measured" in story.report(tmp_path)


def test_many_pools_are_cut_and_the_report_says_so(tmp_path: Path):
    story = Story(*(Pool(f"p{i}", 9) for i in range(POOLS_DRAWN + 2)))
    for i in range(2 * POOLS_DRAWN + 4):
        story.job(i, 1 + i % 9, 60, fcfs=i, ssf=i + 5)
    text = story.words(tmp_path)
    assert f"the {POOLS_DRAWN} of {POOLS_DRAWN + 2} pools" in text
    assert "2 more pools with fewer slowed jobs" in text


def test_a_curve_has_few_points_and_both_ends():
    rng = Random(1)
    ordered = np.sort([rng.lognormvariate(0, 3) for _ in range(20_000)])
    spots = canvas._spots(ordered)
    assert len(spots) <= POINTS_DRAWN - 3
    assert spots[0] == 0
    assert spots[-1] == len(ordered) - 1


def random_story(seed: int) -> Story:
    """Whole seconds; some jobs run on anyone's GPUs, more than there are, some never."""
    rng = Random(seed)
    changes = [PoolChanged(float(rng.randint(0, 150)), rng.choice("ab"), rng.randint(0, 9))]
    changes += [PoolChanged(160.0, "a", 3)]
    story = Story(Pool("a", 6), Pool("b", 3), Pool("c", 0), changes=tuple(changes))
    for i, submit in enumerate(sorted(rng.randint(0, 200) for _ in range(40))):
        start = None if rng.random() < 0.1 else submit + rng.randint(0, 40)
        story.job(submit, rng.randint(1, 3), rng.randint(1, 50), fcfs=submit, sia=start)
        if start is not None and rng.random() < 0.5:
            story.lend("sia", rng.choice("abc"), i)
    return story


def naive(story: Story, pool: str, begin: int, end: int) -> dict[str, list[int]]:
    """GPUs of a pool in each second."""
    seconds = range(begin, end)
    parts = {part: [0] * len(seconds) for part in canvas.TimeLine._fields[1:]}
    schedule = story.schedules["sia"]
    homes = {job.id: job.pool for job, _ in story.trace.arrivals}

    def add(part: str, start: float, stop: float, gpus: int) -> None:
        for second in seconds:
            if start <= second < stop:
                parts[part][second - begin] += gpus

    steps = story.table.quotas()[pool]
    for (start, quota), (stop, _) in zip(steps, [*steps[1:], (end, 0)], strict=True):
        add("owned", start, stop, quota)
    for i, (job, lasts) in enumerate(story.trace.arrivals):
        start = schedule.starts[i]
        if job.pool == pool:
            add("waiting", job.submit, end if start is None else start, job.width)
            if start is not None and not schedule.spare[i]:
                add("dedicated", start, start + lasts, job.width)
    for job_id, donor, gpus, start, stop in schedule.loans:
        mine = homes[job_id] == pool
        part = ("own_spare" if mine else "lent") if donor == pool else "borrowed"
        if mine or donor == pool:
            add(part, start, stop, gpus)
    used = zip(*(parts[part] for part in ("owned", "dedicated", "own_spare", "lent")), strict=True)
    parts["idle"] = [max(0, owned - sum(by)) for owned, *by in used]
    return parts


@pytest.mark.parametrize("seed", range(5))
def test_time_line_adds_up_to_the_gpu_seconds(seed: int):
    story = random_story(seed)
    replayed = Replayed(*story.parts())
    begin, end = replayed.range()
    for place, line in enumerate(time_lines(replayed, "sia", range(3))):
        truth = naive(story, "abc"[place], int(begin), int(end))
        width = np.diff(line.edges)
        for part, expected in truth.items():
            got = getattr(line, part)
            assert (got >= 0).all()
            assert (got * width).sum() == pytest.approx(sum(expected), abs=1e-6), part
            # Bins are shorter than a second here, so each lies in one of the truth's or across two.
            middle = ((line.edges[:-1] + line.edges[1:]) / 2 - begin).astype(int)
            inside = np.floor(line.edges[:-1]) == np.floor(line.edges[1:] - 1e-9)
            assert got[inside] == pytest.approx(np.array(expected)[middle][inside], abs=1e-6), part


def test_bursts_between_two_edges_are_not_lost():
    edges = np.array([0.0, 100.0, 200.0])
    burst = canvas.during([30.0, 130.0, 150.0], [31.0, 170.0, 350.0], [50, 1, 2])
    assert canvas.averages([burst], edges) == pytest.approx([0.5, 0.4 + 1.0])


def test_pools_overdrawn_after_a_change_are_never_less_than_idle():
    owned = canvas.Steps(np.array([-np.inf, 50.0]), np.array([4.0, -4.0]))
    used = canvas.during([0.0], [100.0], [3.0])
    minus = canvas.Steps(used.times, -used.changes)
    assert canvas.averages([owned, minus], np.array([0.0, 50.0, 100.0])) == pytest.approx([1, 0])


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, NONE), (0.0034, "0.0034x"), (0.5, "0.50x"), (28.46, "28.5x"), (1234.5, "1,234x")],
)
def test_speed_ups_are_written_in_words(value: float | None, words: str):
    assert speed(value) == words.replace("x", TIMES)


def test_measured_jobs_are_counted_beside_all_of_a_pool_where_they_differ(capsys):
    pool = {"quota": 8, "jobs": 1493, "median_width": 2.0, "median_duration_s": 60.0}
    pool |= {"load_pct": 50.0, "speedup_geomean": 1.5}
    for measured, row in (
        (1493, ["p", "8", "1,493", "2", "1", "m"]),
        (313, ["p", "8", "1,493", "313"]),
    ):
        show_pools({"sia": {"pools": {"p": {**pool, "measured": measured}}}})
        shown = capsys.readouterr().out.splitlines()
        assert shown[-1].split()[: len(row)] == row
        assert ("measured" in " ".join(shown)) == (measured == 313)


def test_deadlines_and_predictions_are_shown_only_for_policies_that_have_them(capsys):
    due = {
        "slo_jobs": 4, "slo_missed_pct": 25.0, "wdmr": 0.25, "wdmr_strict": None, "wdmr_soft": 0.25,
        "best_effort_jobs": 2, "best_effort_avg_jct_s": 60.0,
    }  # fmt: skip
    errors = {f"{key}_pred_err_pct": 1.5 for key in ("avg", "p50", "p99", "max")}
    unfair = {f"{key}_unfairness_pct": 12.0 for key in ("avg", "p99", "max")}
    told = {"slo_jobs": 0, "predicted": 7, "mean_jct_s": 90.0, **errors, **unfair}
    show_aims({"edf": due, "wfq": told})
    deadlines, _, predictions = capsys.readouterr().out.partition("Predicted ends")
    assert deadlines.splitlines()[-2].split() == [
        "edf",
        "4",
        "25.00",
        "0.250",
        NONE,
        "0.250",
        "2",
        "1",
        "m",
    ]
    assert "wfq" not in deadlines
    assert predictions.splitlines()[-1].split()[:5] == ["wfq", "7", "1", "m", "30"]
    assert "edf" not in predictions
    show_aims({"fcfs": {"slo_jobs": 0}})
    assert not capsys.readouterr().out


def test_times_and_hours_are_written_in_words():
    spans = (30.0, 59.4, 59.6, 300.0, 599.7, 3599.6, 5400.0, 43200.0, 35990.0, 172790.0, 2e5)
    assert ", ".join(map(duration, spans)) == (
        "30 s, 59 s, 1 m, 5 m, 10 m, 1 h, 1 h 30 m, 12 h, 10 h, 2 d, 2 d 8 h"
    )
    words = [hours(x) for x in (0, 0.022, 0.26, 35.31, 99.99, 24000.2)]
    assert words == ["0", "0.02", "0.3", "35.3", "100", "24,000"]
