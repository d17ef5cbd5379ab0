"""The logs and workloads of PCS."""

import pytest

from replay.logs.importers import read_log
from replay.logs.importers.workload import draw_jobs, read_workload
from sia.console.errors import UserError

LOG = """job_id,pool,submit,service,max_width,model
b,vc2,5,100,1,vgg
a,vc1,0,100,4,vgg
c,vc1,7,60,9,vgg
"""
SPEEDUPS = """model,gpus,speedup
vgg,1,1.0
vgg,2,1.5
vgg,3,1.4
vgg,4,2.5
"""
WORKLOAD = """workload,quantity,value,cdf
workload-3,service,1,0
workload-3,service,3,0.5
workload-3,service,5,1
workload-3,trials,1,0
workload-3,trials,1,1
workload-3,gpus_per_trial,1,0
workload-3,gpus_per_trial,1,0.5
workload-3,gpus_per_trial,2,1
"""


def files(folder, log=LOG, speedups=SPEEDUPS):
    (folder / "log.csv").write_text(log)
    (folder / "speedups.csv").write_text(speedups)
    return folder / "log.csv", folder / "speedups.csv"


def test_jobs_run_as_their_models_scale(tmp_path):
    trace, table = read_log(*files(tmp_path), "pcs")
    a, b, c = trace.arrivals
    assert [each.job.id for each in trace.arrivals] == ["a", "b", "c"]
    assert (a.job.width, a.job.min_width, a.job.max_width, a.duration) == (4, 1, 4, 40.0)
    # the table falls at three GPUs, and is held there
    assert a.job.demand == ((1, 100.0), (2, 100 / 1.5), (3, 100 / 1.5), (4, 40.0))
    assert (b.job.width, b.duration, b.job.demand) == (1, 100.0, ())
    # past the table's end nothing is known: it stays flat
    assert (c.job.width, c.duration, c.job.speed(4)) == (9, 24.0, 1.0)
    assert [(pool.name, pool.quota, pool.share) for pool in table.pools] == [
        ("vc1", 64, False), ("vc2", 64, False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("log", "speedups", "words"),
    [
        (LOG.replace("vgg", "bert"), SPEEDUPS, "row 2, column model: 'bert' has no speed-ups"),
        (LOG.replace("c,vc1", "a,vc1"), SPEEDUPS, "row 4, column job_id"),
        (LOG.replace("100", "-1", 1), SPEEDUPS, "row 2, column service"),
        (LOG, SPEEDUPS.replace("vgg,2", "vgg,5"), "row 3, column gpus: 5 GPUs where 2"),
        (LOG.splitlines()[0] + "\n", SPEEDUPS, "the log has no job"),
    ],
)
def test_wrong_files_are_refused_in_one_line(tmp_path, log, speedups, words):
    with pytest.raises(UserError) as caught:
        read_log(*files(tmp_path, log, speedups), "pcs")
    assert words in caught.value.message
    assert "\n" not in caught.value.message


def test_the_second_file_is_asked_for(tmp_path):
    with pytest.raises(UserError, match="give it as the second file"):
        read_log(files(tmp_path)[0], None, "pcs")


def test_a_workload_is_drawn_at_its_load(tmp_path):
    (tmp_path / "w.csv").write_text(WORKLOAD)
    workload = read_workload(tmp_path / "w.csv", "workload-3")
    assert workload.service.mean == 180.0
    trace, table = draw_jobs(workload, 4000, 8, 0.5, seed=1)
    assert draw_jobs(workload, 4000, 8, 0.5, seed=1)[0].arrivals == trace.arrivals
    assert draw_jobs(workload, 4000, 8, 0.5, seed=2)[0].arrivals != trace.arrivals
    sizes = [arrival.duration * arrival.job.width for arrival in trace.arrivals]
    assert sum(sizes) / len(sizes) == pytest.approx(180, rel=0.03)
    assert sum(sizes) / (8 * trace.arrivals[-1].job.submit) == pytest.approx(0.5, rel=0.05)
    widths = [arrival.job.width for arrival in trace.arrivals]
    assert widths.count(1) / len(widths) == pytest.approx(0.5, abs=0.03)
    assert {1, 2} == set(widths)
    assert [pool.quota for pool in table.pools] == [8]


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        (("workload-3", "workload-9"), "workload-3", "no workload 'workload-3'; it has workload-9"),
        (("service,3,0.5", "service,3,1.5"), "workload-3", "do not ascend"),
        (("trials,1,1", "trials,1,0.9"), "workload-3", "cdf of trials must go from 0 to 1"),
        (("trials", "tries"), "workload-3", "'tries' is unknown"),
    ],
)
def test_wrong_distributions_are_refused_in_one_line(tmp_path, change, name, words):
    (tmp_path / "w.csv").write_text(WORKLOAD.replace(*change))
    with pytest.raises(UserError) as caught:
        read_workload(tmp_path / "w.csv", name)
    assert words in caught.value.message
