"""What is observed of a log, what is learned from it, and how models are kept and refused."""

import subprocess
import sys
from math import ceil
from random import Random

import msgspec
import numpy as np
import pytest

from predictors.learning.features import NAMES
from predictors.learning.model import booster, digest
from predictors.learning.training import TrainingRows, learn_arrivals, persistence, score
from replay.forecast import model_folder, train
from replay.forecast.model_folder import MANIFEST, read_model, write_model
from replay.forecast.train import compare, learn, observe, thinned, train_on
from replay.logs.read import read_pools, read_trace
from replay.logs.trace import PoolTable, Trace, checksum_of_jobs
from sia import Job, Pool
from sia.console.errors import UserError
from sia.core.playout import Arrival
from sia.limits import TICK
from sia.limits import WINDOWS as WINDOWS_OF_ALL
from tests.support.budget import SOAK, budget
from tests.support.files import refusal
from tests.support.forecasting import of_few_trees
from tests.support.paths import ROOT
from tests.support.shell import digests

pytest.importorskip("xgboost", reason="the extra `learn` is not installed")

HOUR, DAY = 3600.0, 86400.0
pytestmark = pytest.mark.xdist_group("train")  # in one process, which trains one model

WINDOWS = (TICK, HOUR)
PER_WINDOW = ("features", "jobs", "gpus")


def log(*submissions):
    """Jobs of one GPU and ten minutes, from (pool, seconds)."""
    ordered = sorted(submissions, key=lambda of: of[1])
    return Trace(
        [Arrival(Job(f"j{i}", pool, at, 1), 600.0) for i, (pool, at) in enumerate(ordered)]
    )


def clockwork(days=6, seed=0):
    """Pool `clock` submits every 40 minutes, pool `chance` whenever it likes."""
    rng = Random(seed)
    clock = [("clock", 2400.0 * i + 1) for i in range(int(days * 36))]
    return log(*clock, *(("chance", rng.random() * days * DAY) for _ in range(days * 10)))


@pytest.fixture(scope="module")
def observed():
    return observe(clockwork(), None, windows=WINDOWS)


@pytest.fixture(scope="module")
def model(observed):
    return learn(observed, until=4.5 * DAY, trace_sha256="a log's")


@pytest.fixture
def kept(model, tmp_path):
    write_model(tmp_path / "model", model)
    return tmp_path / "model"


def test_labels_are_what_arrives_after_the_tick_up_to_the_windows_end():
    trace = log(("a", 0.0), ("a", TICK), ("a", 2 * TICK), ("b", 2 * TICK + 1), ("a", HOUR + TICK))
    rows = observe(trace, None, windows=WINDOWS)
    assert rows.times.tolist() == [i * TICK for i in range(14)]
    assert rows.jobs[:4, 0, 0].tolist() == [1, 1, 0, 0]
    assert rows.jobs[:3, 1, 0].tolist() == [0, 0, 1]
    assert rows.jobs[:2, 0, 1].tolist() == [2, 2]
    assert rows.ticks(0, 0.0, np.inf).tolist() == list(range(13))
    assert rows.ticks(1, 0.0, np.inf).tolist() == [0, 1]
    assert rows.ticks(0, TICK, 3 * TICK).tolist() == [1, 2]


def test_gpus_are_counted_by_width():
    jobs = [Job("now", "a", 0.0, 3), Job("soon", "a", 10.0, 5), Job("end", "a", 2 * HOUR, 7)]
    rows = observe(Trace([Arrival(job, 60.0) for job in jobs]), None, windows=WINDOWS)
    assert rows.gpus[:2, 0].tolist() == [[5, 5], [0, 0]]


def test_in_the_pools_quotas_jobs_wait_and_without_pools_none_does():
    jobs = [Arrival(Job(f"j{i}", "a", 1.0 + i, 1), 2 * HOUR) for i in range(3)]
    jobs.append(Arrival(Job("last", "a", 3 * HOUR, 1), 1.0))
    waiting = NAMES.index("waiting")
    for table, waits in ((PoolTable([Pool("a", 1)]), 2.0), (None, 0.0)):
        rows = observe(Trace(jobs), table, windows=WINDOWS)
        assert rows.features[2, 0, 0, waiting] == waits


def test_events_after_until_are_neither_observed_nor_in_the_checksum():
    trace, until = clockwork(), 2 * DAY
    cut = Trace([arrival for arrival in trace.arrivals if arrival.job.submit <= until])
    assert checksum_of_jobs(trace, until) == checksum_of_jobs(cut) != checksum_of_jobs(trace)
    one, other = (
        observe(trace, None, windows=WINDOWS, until=until),
        observe(cut, None, windows=WINDOWS),
    )
    assert np.array_equal(one.features[: len(other.times)], other.features)
    assert one.times[-1] == until  # the silence at the end is observed as well
    assert one.end == until
    assert other.end == cut.arrivals[-1].job.submit


@pytest.mark.parametrize("every", [1, 2, 3, 7])
def test_a_large_log_is_looked_at_less_often(every, monkeypatch, observed):
    """At one of each so many ticks, and in step with no rhythm of the log."""
    most = ceil(len(observed.times) / every)
    monkeypatch.setattr(train, "MAX_OBSERVED", most * observed.jobs[0].size)
    rows = observe(clockwork(), None, windows=WINDOWS)
    assert most - 1 <= len(rows.times) <= most
    ticks = np.rint((rows.times - observed.times[0]) / TICK).astype(int)
    assert set(np.diff(ticks // every)) == {1}
    for of_all, of_some in zip(observed[1:4], rows[1:4], strict=True):
        assert np.array_equal(of_some, of_all[ticks])
    for period in (2, 3, 12):
        assert np.bincount(ticks % period) / len(ticks) == pytest.approx(1 / period, rel=0.25)
    said = thinned(rows)
    assert bool(said) == (every > 1)
    assert (f"one of {every} ticks is looked at" in said) == (every > 1)


def test_a_clockwork_is_learned_and_chance_is_not(observed, model):
    ticks = observed.ticks(0, 4.5 * DAY, np.inf)
    said = model.arrives(observed.inputs(ticks, 0), 0).reshape(-1, 2)
    true = observed.jobs[ticks, :, 0] > 0
    clock, chance = (score(said[:, pool], true[:, pool]).f for pool in range(2))
    assert clock > 0.95
    assert chance < 0.5
    assert clock > score(persistence(observed, ticks, 0).reshape(-1, 2)[:, 0], true[:, 0]).f


def test_a_model_is_scored_on_days_outside_its_training(observed, model):
    manifest = model.manifest
    assert manifest.windows == WINDOWS
    assert (manifest.since, manifest.until) == (0.0, 4.5 * DAY) or manifest.since == TICK
    for window, learned in enumerate(manifest.learned):
        held = observed.ticks(
            window, manifest.until - 0.2 * (manifest.until - manifest.since), manifest.until
        )
        assert learned.scores.n == 2 * len(held)
        assert learned.scores.positives == observed.some(held, window).sum()
        assert list(learned.covered) == sorted(learned.covered)


def test_events_after_the_training_span_do_not_change_a_model(observed, model):
    later = observed.times >= 4.5 * DAY
    other = observed._replace(
        features=np.where(later[:, None, None, None], np.float32(7), observed.features),
        jobs=np.where(later[:, None, None], 0, observed.jobs),
        gpus=np.where(later[:, None, None], 99, observed.gpus),
    )
    assert learn(other, until=4.5 * DAY, trace_sha256="a log's").arrivals == model.arrivals


def test_the_same_log_gives_the_same_bytes_whatever_the_hash_seed(tmp_path):
    program = (
        "import sys; from pathlib import Path\n"
        "from tests.replay.forecast import test_train as t\n"
        "with t.of_few_trees():"
        " t.write_model(Path(sys.argv[1]), t.train_on(t.clockwork(3), None, windows=t.WINDOWS))"
    )
    for seed in "12":
        subprocess.run(
            [sys.executable, "-c", program, tmp_path / seed],
            check=True,
            env={"PYTHONHASHSEED": seed},
            cwd=ROOT,
        )
    assert digests(tmp_path / "1") == digests(tmp_path / "2")
    assert len(digests(tmp_path / "1")) == 5


def test_a_log_in_which_nothing_more_arrives_is_learned_as_something_always_arrives(quickly):
    quiet = log(*(("a", 60.0 * i) for i in range(30)), ("a", 9 * DAY))
    model = train_on(quiet, None, windows=WINDOWS, until=9 * DAY - HOUR)
    features = np.zeros((3, len(NAMES)), np.float32)
    assert model.arrives(features, 0).all()
    assert model.manifest.learned[0].scores.positives == 0


def test_a_model_that_was_kept_says_the_same(observed, model, kept):
    again = read_model(kept, WINDOWS)
    assert again.manifest == model.manifest
    inputs = observed.inputs(np.arange(200), 1)
    assert np.array_equal(again.arrives(inputs, 1), model.arrives(inputs, 1))
    assert np.array_equal(again.quantiles(inputs, 1), model.quantiles(inputs, 1))


def test_a_folder_without_a_model_is_refused(kept, tmp_path):
    for option in ("--compare", "--model"):
        text = refusal(read_model, tmp_path, of=tmp_path / MANIFEST, option=option)
        assert f"is missing; give {option} a folder that sia forecast train wrote" in text
    (kept / "load-1h.ubj").unlink()
    assert "cannot be read" in refusal(read_model, kept, of=kept / "load-1h.ubj")


def test_a_model_of_other_windows_is_refused(kept):
    text = refusal(read_model, kept, of=kept / MANIFEST, windows=(300.0, 7200.0))
    assert "has the windows 5m, 1h, not 5m, 2h" in text


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format": 2}, "newer than 1"),
        ({"features": ["another"]}, "has other features"),
        ({"windows": [3600.0, 300.0]}, "has other features, quantiles or windows"),
        ({"windows": [300.0, 31 * DAY]}, "has other features, quantiles or windows"),
        ({"tick": 60.0}, "has other features, quantiles or windows"),
        ({"quantiles": [0.5]}, "has other features, quantiles or windows"),
        ({"learned": []}, "has other features, quantiles or windows"),
        ({"until": "tomorrow"}, "is not the manifest"),
        ({"more": 1}, "is not the manifest"),
    ],
)
def test_a_manifest_that_is_not_as_expected_is_refused(kept, change, problem):
    path = kept / MANIFEST
    facts = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode({**facts, **change}))
    assert problem in refusal(read_model, kept, of=path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[1]", b'{"format": 1}', b"null"])
def test_a_file_that_is_not_a_manifest_is_refused(kept, content):
    (kept / MANIFEST).write_bytes(content)
    assert "is not the manifest" in refusal(read_model, kept, of=kept / MANIFEST)


def test_corrupt_trees_are_refused(kept):
    path = kept / "arrivals-5m.ubj"
    trees = path.read_bytes()
    path.write_bytes(trees[:-1] + bytes([trees[-1] ^ 1]))
    assert "is not the file that the manifest names" in refusal(read_model, kept, of=path)


@pytest.mark.parametrize("trees", [b"", b"{L", b"no trees at all", b"{}"])
def test_trees_that_are_none_are_refused_though_their_checksum_is_right(kept, trees):
    path = kept / "arrivals-5m.ubj"
    path.write_bytes(trees)
    facts = msgspec.json.decode((kept / MANIFEST).read_bytes())
    facts["learned"][0]["arrivals_sha256"] = digest(trees)
    (kept / MANIFEST).write_bytes(msgspec.json.encode(facts))
    assert "has no trees of these features" in refusal(read_model, kept, of=path)


def test_a_file_too_large_is_refused_unread(kept, monkeypatch):
    monkeypatch.setattr(model_folder, "MAX_FILE", 1000)
    assert "is larger than 1,000 bytes" in refusal(read_model, kept, of=kept / MANIFEST)


def test_a_log_too_short_for_a_window_is_refused():
    short, windows = log(("a", 0.0), ("a", 12 * HOUR)), (300.0, 43200.0)
    with pytest.raises(UserError, match=r"short\.csv: is too short to train a window of 12h"):
        train_on(short, None, windows=windows, name="short.csv")
    with pytest.raises(UserError, match="has no jobs to learn from; give"):
        train_on(log(("a", 100.0)), None, until=50.0)


def test_a_log_of_milliseconds_is_refused():
    with pytest.raises(UserError, match="longer than 100,000 hours; are its times seconds"):
        observe(log(("a", 0.0), ("a", 4e8)), None)


def test_without_xgboost_its_extra_is_named(monkeypatch, observed, tmp_path):
    monkeypatch.setattr(model_folder, "find_spec", lambda _: None)
    for use in (
        lambda: learn(observed, until=DAY, trace_sha256=""),
        lambda: read_model(tmp_path),
    ):
        with pytest.raises(UserError, match=r"pipx install --force 'sia-scheduler\[learn\]'"):
            use()


def test_the_core_and_the_commands_run_without_xgboost():
    program = (
        "import sys, replay.run.run, replay.forecast.train; assert 'xgboost' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_model_of_stale_days_is_replaced_and_a_good_one_kept(quickly):
    """The old model learned of a pool that was silent until it became a clockwork."""
    turned = log(
        *(("a", DAY * i / 3) for i in range(12)),
        *(("a", 4 * DAY + 2400.0 * i) for i in range(6 * 36)),
    )
    rows = observe(turned, None, windows=WINDOWS)
    stale = learn(rows, until=4 * DAY, trace_sha256="")
    found = compare(rows, stale, held_from=rows.end - DAY, trace_sha256="")
    assert found.better
    assert found.new.manifest.until == rows.end - DAY
    assert [of.window for of in found.of_new] == list(WINDOWS)
    again = compare(rows, found.new, held_from=rows.end - DAY, trace_sha256="")
    assert not again.better  # the same is no better


def test_a_model_is_not_judged_on_days_it_learned_from(observed, model):
    with pytest.raises(UserError, match="was trained up to second 388800, but the test"):
        compare(observed, model, held_from=3 * DAY, trace_sha256="")
    with pytest.raises(UserError, match="has other windows"):
        compare(observed._replace(windows=(1.0, 2.0)), model, held_from=5 * DAY, trace_sha256="")


@pytest.fixture
def quickly():
    with of_few_trees():
        yield


def test_a_retrained_model_learns_from_the_recent_span(monkeypatch, observed, quickly):
    old = learn(observed, until=2 * DAY, trace_sha256="")
    for asked, recent, since in ((None, 60.0, TICK), (None, 2.0, 3 * DAY), (DAY, 2.0, DAY)):
        monkeypatch.setattr(train, "RECENT_SPAN", recent * DAY)
        new = compare(observed, old, held_from=5 * DAY, trace_sha256="", since=asked).new
        assert new.manifest.since == since


def test_windows_between_two_ticks_are_refused():
    with pytest.raises(UserError, match="--windows: 7m is not a multiple of 5m; use mult"):
        observe(clockwork(), None, windows=(TICK, 420.0))


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("99.0.1", "was written by xgboost 99.0.1, newer than"),
        ("", "does not name its version"),
        ("9" * 5000, "does not name its version"),
    ],
)
def test_trees_of_a_later_xgboost_are_refused(kept, version, problem):
    path = kept / MANIFEST
    facts = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode({**facts, "versions": {"xgboost": version}}))
    assert problem in refusal(read_model, kept, of=path)


def test_trees_of_windows_that_are_no_longer_of_the_model_go(observed, kept, quickly):
    alone = observed._replace(
        windows=WINDOWS[:1], **{key: getattr(observed, key)[:, :, :1] for key in PER_WINDOW}
    )
    write_model(kept, learn(alone, until=4.5 * DAY, trace_sha256=""))
    assert {path.name for path in kept.iterdir()} == {MANIFEST, "arrivals-5m.ubj", "load-5m.ubj"}


def test_on_philly_arrivals_are_foretold_better_than_by_persistence(traces):
    """On two weeks of two pools; in `make soak`, on the whole log, by how much too."""
    trace, table = read_trace(traces / "philly.csv.gz"), read_pools(traces / "philly_pools.csv")
    if not SOAK:
        pools = table.pools[:2]
        names = {pool.name for pool in pools}
        table = PoolTable(pools)
        trace = Trace([a for a in trace.arrivals if a.job.pool in names and a.job.submit < 65 * DAY
                       and a.job.submit >= 51 * DAY])  # fmt: skip
    rows = observe(trace, table, windows=budget(ci=(TICK, HOUR), soak=WINDOWS_OF_ALL))
    until = float(rows.times[0] + 0.75 * (rows.end - rows.times[0]))
    for window, least in enumerate(budget(ci=(0.0, 0.0), soak=(0.58, 0.74, 0.88))):
        assert philly_f(rows, window, until) >= least


def philly_f(rows: TrainingRows, window, until):
    """F on the last quarter; asserts that it is above that of persistence."""
    trees, threshold, _ = learn_arrivals(rows, window, -np.inf, until)
    ticks = rows.ticks(window, until, np.inf)
    chances = booster(trees).inplace_predict(rows.inputs(ticks, window))
    true = rows.some(ticks, window)
    f = score(chances >= np.float32(threshold), true).f
    assert f > score(persistence(rows, ticks, window), true).f
    return f
