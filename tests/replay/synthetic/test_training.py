"""`sia trace synth --preset shockwave`: shares, GPU-hours, and what is refused."""

import pytest

from replay.logs.importers.gavel_models import JobModel
from replay.logs.read import read_trace
from replay.synthetic.training import CLASSES, make_training
from sia.console.errors import UserError
from tests.support.shell import digests, sia

SPEEDS = "model,config,width,steps_per_second\n" + "".join(
    f"LM,{batch},{width},{900 // batch * width}\n" for batch in (20, 40, 80) for width in (1, 2, 4)
)


def made(folder, *more):
    (folder / "speeds.csv").write_text(SPEEDS)
    return sia(
        "trace", "synth", "--preset", "shockwave", "--speeds", folder / "speeds.csv",
        "--out", folder / "out", *more,
    )  # fmt: skip


def test_jobs_of_all_widths_and_modes_with_gpu_hours_of_their_classes(tmp_path):
    done = made(tmp_path, "--jobs", 300, "--gpus", 100)
    assert "contention: 3.00 jobs for each GPU" in done.stdout
    jobs = read_trace(tmp_path / "out" / "trace.csv").arrivals
    assert {job.width for job, _ in jobs} == {1, 2, 4}
    assert {job.mode for job, _ in jobs} == {"static", "accordion", "gns"}
    hours = [job.width * seconds / 3600 for job, seconds in jobs]
    assert max(hours) < CLASSES[-1][2]
    assert 0.6 < sum(hour < 8 for hour in hours) / len(hours) < 0.84
    assert 25 < jobs[-1][0].submit / 299 < 60


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    found = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        made(tmp_path / name, "--jobs", 20, "--modes", "gns=1", "--seed", 3)
        found.append(digests(tmp_path / name / "out"))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (("--modes", "gsn=1"), "'gsn' is not a known mode"),
        (("--modes", "gns=x"), "'x' is no share"),
        (("--modes", "gns=0"), "one of them above 0"),
        (("--days", "1"), "neither --days"),
        (("--preset", "base"), "--speeds: works only with --preset shockwave"),
    ],
)
def test_options_without_sense_are_refused(tmp_path, more, line):
    done = made(tmp_path, *more)
    assert done.returncode == 2
    assert line in done.stderr


def test_a_table_of_unknown_models_is_refused_with_the_known_ones():
    speeds = {JobModel("resnet", 32, 1): 5.0}
    with pytest.raises(UserError, match=r"has resnet, no model .* use ResNet-18, ResNet-50"):
        make_training(speeds, 1, jobs=5, gpus=8, every=60.0)
