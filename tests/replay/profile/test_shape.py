"""What a log looks like (Figs. 2, 3), with answers worked out by hand; pools cut by width."""

import csv
import gzip
import json
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from replay.logs.read import read_trace
from replay.logs.split import split_by_width, width_class
from replay.logs.trace import PoolTable, Trace, largest_load
from replay.profile.gpu_minutes import COLUMNS, shape_of_minutes
from replay.profile.profile import HOUR, in_short, shape_of, soon_after_an_end
from sia.console.errors import UserError
from sia.events import PoolChanged
from sia.model import Pool
from tests.support.budget import SOAK
from tests.support.builders import job
from tests.support.shell import sia

DAY = 24 * HOUR


def log(*arrivals):
    return Trace(sorted(arrivals, key=lambda arrival: arrival.job.submit))


def of(trace, *pools, changes=()):
    return shape_of(trace, PoolTable(list(pools), list(changes)))


TWO_POOLS = log(
    job("a0").gpus(4).at(0).runs(HOUR),
    job("a1").gpus(4).at(0).runs(HOUR),  # waits for the first, runs in the second hour
    job("b0").pool("b").gpus(2).at(HOUR / 2).runs(HOUR / 2),
    job("a2").gpus(1).at(4 * HOUR).runs(100),
)


# Fig. 2


def test_utilisation_by_the_hour_of_each_pool_and_of_all():
    facts = of(TWO_POOLS, Pool("a", 4), Pool("b", 4))
    assert facts["pools"]["a"]["hourly_pct"] == [100, 100, 0, 0]
    assert facts["pools"]["b"]["hourly_pct"] == [25, 0, 0, 0]
    assert facts["hourly_pct"] == [62.5, 50, 0, 0]
    assert facts["pools"]["a"]["utilisation_pct"] == 50
    assert facts["utilisation_pct"] == pytest.approx(28.125)
    assert facts["utilisation"] == "as replayed by fcfs"


def test_run_time_after_the_last_submission_does_not_count():
    facts = of(log(job("a").runs(9 * HOUR), job("b").at(2 * HOUR).runs(1)), Pool("a", 2))
    assert facts["hourly_pct"] == [50, 50]


def test_a_pool_that_grows_owns_more_from_then_on():
    trace = log(job("x").gpus(2).runs(2 * HOUR), job("y").gpus(1).at(3 * HOUR).runs(1))
    facts = of(trace, Pool("a", 2), changes=[PoolChanged(HOUR, "a", 4)])
    assert facts["hourly_pct"] == [100, 50, 0]
    assert facts["utilisation_pct"] == 40
    assert facts["pools"]["a"]["gpus"] == 4


def test_an_hour_in_which_a_pool_does_not_exist_says_nothing_of_it():
    trace = log(job("x").gpus(2).at(0).runs(1.5 * HOUR), job("y").at(2 * HOUR).runs(1))
    facts = of(trace, Pool("a", 0), changes=[PoolChanged(HOUR, "a", 2)])
    assert facts["pools"]["a"]["hourly_pct"] == [100]


def test_a_pool_without_jobs_idles_and_says_no_more():
    facts = of(log(job("x").runs(HOUR), job("y").at(HOUR).runs(1)), Pool("a", 1), Pool("b", 3))
    assert facts["pools"]["b"] == {
        "gpus": 3, "utilisation_pct": 0, "hourly_pct": [0], "jobs": 0, "burst_pct": 0,
        "duration_p50_s": None, "duration_ratio": None, "gap_cv": None, "widths": None,
        "soon_pct": None, "soon_control_pct": None,
    }  # fmt: skip
    assert facts["hourly_pct"] == [25]


def test_jobs_that_no_pool_could_run_are_counted_and_left_out():
    trace = log(job("x").runs(HOUR), job("wide").gpus(9).runs(1), job("z").pool("?").runs(1))
    facts = of(trace, Pool("a", 1))
    assert facts["jobs"] == 1
    assert facts["dropped"] == {
        "of a pool that the pools file lacks": 1,
        "wider than its pool": 1,
    }


# Fig. 3


def test_the_largest_load_in_five_minutes():
    together = [job(f"j{i}").gpus(2).at(at).runs(1) for i, at in enumerate((0, 299, 300, 599))]
    assert largest_load([arrival.job for arrival in together]) == 4  # the window is half open
    facts = of(TWO_POOLS, Pool("a", 4), Pool("b", 4))
    assert facts["pools"]["a"]["burst_pct"] == 200
    assert facts["pools"]["b"]["burst_pct"] == 50


def test_long_durations_by_the_median():
    lengths = [10] * 60 + [20] * 38 + [500, 900]
    facts = of(log(*(job(f"j{i}").runs(d) for i, d in enumerate(lengths))), Pool("a", 1))
    assert facts["pools"]["a"]["duration_p50_s"] == 10
    assert facts["pools"]["a"]["duration_ratio"] == 90


def test_times_between_arrivals_by_their_variation():
    def variation(*submits):
        trace = log(*(job(f"j{i}").at(at).runs(1) for i, at in enumerate(submits)))
        return of(trace, Pool("a", 1))["pools"]["a"]["gap_cv"]

    assert variation(0, 60, 120, 180) == 0  # a clock
    assert variation(0, 0, 7200) == 1
    assert variation(0, 0, 0, 0, 7200) == pytest.approx(3**0.5, abs=1e-4)
    assert variation(0, 60) is None  # one gap does not vary
    assert variation(5, 5, 5) is None


def test_the_number_of_widths_that_make_most_jobs_is_shown():
    def widths(*counts):
        jobs = [job(f"{gpus}-{i}").gpus(gpus).runs(1) for gpus, n in counts for i in range(n)]
        return of(log(*jobs), Pool("a", 8))["pools"]["a"]["widths"]

    assert widths((8, 95), (1, 5)) == 1
    assert widths((8, 94), (1, 6)) == 2
    assert widths((1, 50), (2, 30), (4, 15), (8, 5)) == 3


# The closed loop


def soon(submits, ends, counts=None):
    counts = [1] * len(submits) if counts is None else counts
    return soon_after_an_end(*(np.array(values, dtype=float) for values in (submits, counts, ends)))


def test_submissions_within_half_an_hour_after_an_end():
    assert soon([0, 1000, 5000], [900, 3199])[0] == pytest.approx(100 / 3, abs=1e-4)
    assert soon([0, 1000, 5000], [900, 3200])[0] == pytest.approx(200 / 3, abs=1e-4)
    assert soon([0, 1000, 5000], [900, 3200], counts=[1, 1, 2])[0] == 75
    assert soon([100], [100])[0] == 100  # ends come first
    assert soon([], []) == (None, None)


def test_the_control_moves_submissions_by_whole_days():
    noon = DAY / 2
    submits = [0, noon, 2 * DAY + noon, 4 * DAY]
    ends = [2 * DAY + noon - 600, noon - 600]
    share, control = soon(submits, ends)
    assert share == 50
    # Moved by 2 of the 4 days both fall behind an end again; by 1 or 3, neither.
    assert control == pytest.approx(200 / 9, abs=1e-4)


def test_a_log_of_a_day_has_no_control():
    assert soon([0, 1.9 * DAY], [0])[1] is None


def test_a_summary_line_is_printed():
    facts = of(TWO_POOLS, Pool("a", 4), Pool("b", 4))
    assert in_short(facts) == {
        "hourly_p5": 0, "hourly_p50": 50, "hourly_p95": 62.5, "burst_over_100_pct": 50,
        "ratio_over_10_pct": 0, "one_width_pct": 50, "gap_cv": 1, "soon_pct": 0,
        "soon_control_pct": None,
    }  # fmt: skip


# Minutes instead of jobs


def write_minutes(path, rows):
    """`rows`: (minute, GPUs owned, running, pending, jobs); further columns as Helios has them."""
    header = ("time", "gpu_utilization", *COLUMNS[1:])
    lines = [
        f"2020-05-01 {minute // 60:02d}:{minute % 60:02d}:00,0.5,{owned},{running},{pending},{jobs}"
        for minute, owned, running, pending, jobs in rows
    ]
    path.write_bytes(gzip.compress("\n".join([",".join(header), *lines]).encode()))


def two_hours(minute):
    """A burst of 12 GPUs on 4; all end after an hour; ten minutes later one more comes."""
    if minute < 10 or 60 <= minute < 70:
        return minute, 4, 0, 0, 0
    if minute < 12:
        return minute, 4, 4, 0, 1
    if minute < 60:
        return minute, 4, 4, 8, 3
    return minute, 4, 1, 0, 1


@pytest.fixture
def minutes(tmp_path):
    folder = tmp_path / "earth"
    folder.mkdir()
    write_minutes(folder / "vcA.csv.gz", [two_hours(minute) for minute in range(120)])
    write_minutes(folder / "vcB.csv.gz", [(minute, 12, 0, 0, 0) for minute in range(120)])
    (folder / "sizes.csv").write_text("date,vcA\n2020-05-01,4\n")
    return folder


def test_minutes_say_how_much_was_used(minutes):
    facts = shape_of_minutes(minutes)
    assert [*facts["pools"]] == ["vcA", "vcB"]
    assert facts["pools"]["vcA"]["hourly_pct"] == [83.3333, 20.8333]
    assert facts["pools"]["vcB"]["hourly_pct"] == [0, 0]
    assert facts["hourly_pct"] == [20.8333, 5.2083]
    assert facts["utilisation_pct"] == 13.0208


def test_minutes_show_bursts_and_what_follows_an_end(minutes):
    pool = shape_of_minutes(minutes)["pools"]["vcA"]
    assert pool["burst_pct"] == 300
    assert pool["soon_pct"] == 25  # one of four jobs
    assert pool["soon_control_pct"] is None


def test_minutes_say_what_they_cannot_give(minutes):
    facts = shape_of_minutes(minutes)
    assert "durations, widths and times between arrivals are not known" in facts["notes"][0]
    assert not {"jobs", "duration_ratio", "gap_cv", "widths"} & facts["pools"]["vcA"].keys()


def test_a_rise_over_a_gap_is_not_a_burst(minutes):
    write_minutes(minutes / "vcA.csv.gz", [(0, 4, 0, 0, 0), (30, 4, 4, 40, 9), (31, 4, 4, 41, 9)])
    assert shape_of_minutes(minutes)["pools"]["vcA"]["burst_pct"] == 25


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("time,total_gpu_num\n", "column running_gpu_num, pending_gpu_num, total_gpujob_num is"),
        (",".join(COLUMNS) + "\n", "no minute in it"),
        (
            ",".join(COLUMNS) + "\nyesterday,1,1,0,1\n",
            "row 2, column time: 'yesterday' is not a time",
        ),
        (",".join(COLUMNS) + "\n2020-05-01 00:00:00,1,-1,0,1\n", "column running_gpu_num"),
        (",".join(COLUMNS) + "\n2020-05-01 00:00:00,1,1\n", "the row has 3 cells"),
        (",".join(COLUMNS) + 2 * "\n2020-05-01 00:00:00,1,1,0,1" + "\n", "row 3, column time"),
        (
            ",".join(COLUMNS) + "\n1020-05-01,1,1,0,1\n2020-05-01,1,1,0,1\n",
            "check column time",
        ),
    ],
)
def test_bad_minutes_are_refused(tmp_path, text, says):
    (tmp_path / "vc.csv").write_text(text)
    with pytest.raises(UserError) as refused:
        shape_of_minutes(tmp_path)
    assert says in str(refused.value)
    assert str(tmp_path) in str(refused.value)


def test_a_folder_without_minutes_is_refused(tmp_path):
    (tmp_path / "sizes.csv").write_text("date,vc\n2020-05-01,4\n")
    with pytest.raises(UserError, match="no file with columns time"):
        shape_of_minutes(tmp_path)
    with pytest.raises(UserError, match="is not a folder"):
        shape_of_minutes(tmp_path / "sizes.csv")


# Real ones


@pytest.mark.skipif(not SOAK, reason="a whole log: make soak")
def test_the_shape_of_helios_earth_is_as_published(traces):
    folder = traces / "helios_earth_minutes"
    facts = shape_of_minutes(folder)
    used = owned = 0.0
    for path in folder.glob("vc*.csv.gz"):
        with gzip.open(path, "rt") as file:
            for row in csv.DictReader(file):
                used += float(row["running_gpu_num"])
                owned += float(row["total_gpu_num"])
    assert len(facts["pools"]) == 16
    assert facts["utilisation_pct"] == pytest.approx(100 * used / owned, abs=0.01)
    assert len(facts["hourly_pct"]) == 31 * 24
    # Its users, too, submit when others' jobs end.
    short = in_short(facts)
    assert short["soon_pct"] > short["soon_control_pct"] + 30


@pytest.fixture(scope="module")
def venus(traces):
    """A whole log of 125,303 jobs; tests with it run in one process, which reads it once."""
    return read_trace(traces / "helios_venus.csv.gz")


@pytest.mark.xdist_group("venus")
def test_the_shape_of_helios_venus_is_as_published(venus):
    (pool,) = of(venus, Pool("venus", 1064))["pools"].values()
    assert pool["jobs"] == 125_303
    assert 650 < pool["burst_pct"] < 750
    assert pool["duration_p50_s"] == 204
    assert pool["duration_ratio"] > 10
    assert pool["gap_cv"] > 2


# The command


JOBS = (
    "job_id,pool,submit,width,duration,gpu_type\n"
    "1,x,0,3,3600,V\n2,x,0,8,60,K\n3,y,1800,1,1800,V\n4,x,90000,1,30,V\n"
)


@pytest.fixture
def small(tmp_path):
    """A log and its pools file."""
    (tmp_path / "odd <&$ name.csv").write_text(JOBS)
    (tmp_path / "pools.csv").write_text("pool,quota\nx,8\ny,2\n")
    return tmp_path / "odd <&$ name.csv", tmp_path / "pools.csv"


def test_the_picture_the_facts_and_the_table(tmp_path, small, minutes):
    outs = [tmp_path / "one", tmp_path / "two"]
    for hash_seed, out in zip((None, "2"), outs, strict=True):  # that of this process is random
        done = sia("trace", "shape", f"{small[0]}:{small[1]}", "--minutes", minutes, "--out", out,
                   hash_seed=hash_seed)  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
    names = ["shape.json", "shape.png", "shape.svg"]
    assert sorted(path.name for path in outs[0].iterdir()) == names
    for name in names:
        assert (outs[0] / name).read_bytes() == (outs[1] / name).read_bytes(), name
    drawn = "".join(ET.parse(outs[0] / "shape.svg").getroot().itertext())
    assert "odd <&$ name (2 pools)" in drawn
    assert "earth (2 pools)" in drawn
    assert "Largest load in 5 minutes" in drawn
    assert (outs[0] / "shape.png").read_bytes().startswith(b"\x89PNG")
    assert [*json.loads((outs[0] / "shape.json").read_text())] == ["odd <&$ name", "earth"]
    assert "odd <&$ name: utilisation as replayed by fcfs" in done.stdout
    assert "earth: utilisation as recorded" in done.stdout
    assert "note: no row a job" in done.stdout
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("y ")]
    assert row.split()[1:5] == ["2", "1", "1", "50"]  # GPUs, jobs, % used, % in five minutes


def test_json_is_the_file(tmp_path, small):
    done = sia("trace", "shape", f"{small[0]}:{small[1]}", "--json", "--out", tmp_path / "out")
    assert done.stdout == (tmp_path / "out" / "shape.json").read_text()


def test_a_log_called_trace_has_its_folders_name(tmp_path, small):
    (tmp_path / "monday").mkdir()
    log = small[0].rename(tmp_path / "monday" / "trace.csv")
    done = sia("trace", "shape", f"{log}:{small[1]}", "--json", "--out", tmp_path / "out")
    assert [*json.loads(done.stdout)] == ["monday"]


def at(folder, text):
    """Words of a command line, with the folder filled in."""
    return [word.replace("@", str(folder)) for word in text.split()]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "name a log and its pools file"),
        ("@/jobs.csv", "has no pools file; write LOG:POOLS, like jobs.csv:pools.csv"),
        ("@/none.csv:@/pools.csv", "none.csv: no such file"),
        ("@/jobs.csv:@/none.csv", "none.csv: no such file"),
        ("@/jobs.csv:@/pools.csv @/b/jobs.csv:@/pools.csv", "two logs have the name 'jobs'"),
        ("@/jobs.csv:@/others.csv", "jobs.csv: no job of it could ever run in its pool"),
        ("@/long.csv:@/pools.csv", "long.csv: it spans 277,777,777 hours; are its times seconds?"),
        ("--minutes @/none", "none: is not a folder"),
    ],
)
def test_a_log_without_a_shape_is_refused_in_one_line(tmp_path, words, says):
    (tmp_path / "b").mkdir()
    for name in ("jobs.csv", "b/jobs.csv"):
        (tmp_path / name).write_text(JOBS)
    (tmp_path / "long.csv").write_text(JOBS.replace("90000", "1e12"))
    (tmp_path / "pools.csv").write_text("pool,quota\nx,8\ny,2\n")
    (tmp_path / "others.csv").write_text("pool,quota\nz,8\n")
    done = sia("trace", "shape", *at(tmp_path, words), "--out", tmp_path / "out")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert says in done.stderr
    assert not (tmp_path / "out").exists()


# Pools by width


def test_classes_are_powers_of_two():
    assert [width_class(width) for width in (1, 2, 3, 4, 5, 8, 9, 200)] == [
        1, 2, 4, 4, 8, 8, 16, 256,
    ]  # fmt: skip


def test_split_moves_jobs_and_changes_nothing_else(small):
    found = read_trace(small[0])
    cut = split_by_width(found)
    assert [a.job.pool for a in cut.arrivals] == ["x-w4", "x-w8", "y-w1", "x-w1"]
    for before, after in zip(found.arrivals, cut.arrivals, strict=True):
        assert after.job.id == before.job.id
        assert (after.job.submit, after.job.width) == (before.job.submit, before.job.width)
        assert after.duration == before.duration
    assert cut.extras == found.extras


def test_the_command_splits_and_keeps_further_columns(tmp_path, small):
    done = sia("trace", "split", "--trace", small[0], "--by", "width", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "4 jobs in 4 pools" in done.stdout
    assert "the new pools have no quotas" in done.stdout
    assert (tmp_path / "out" / "trace.csv").read_text() == (
        "job_id,pool,submit,width,duration,user,name,gpu_type\n"
        "1,x-w4,0.0,3,3600.0,,,V\n2,x-w8,0.0,8,60.0,,,K\n"
        "3,y-w1,1800.0,1,1800.0,,,V\n4,x-w1,90000.0,1,30.0,,,V\n"
    )
    again = sia("trace", "split", "--trace", small[0], "--by", "age", "--out", tmp_path / "out")
    assert again.returncode == 2
    over = sia("trace", "split", "--trace", tmp_path / "out" / "trace.csv", "--by", "width",
               "--out", tmp_path / "out")  # fmt: skip
    assert over.returncode == 2
    assert "would be replaced by a result" in over.stderr


@pytest.mark.xdist_group("venus")
def test_helios_venus_becomes_pools(venus):
    cut = split_by_width(venus)
    pools = {arrival.job.pool for arrival in cut.arrivals}
    assert {f"venus-w{2**i}" for i in range(6)} <= pools
    narrow = sum(arrival.job.pool == "venus-w1" for arrival in cut.arrivals)
    assert narrow / len(cut.arrivals) == pytest.approx(0.52, abs=0.01)
