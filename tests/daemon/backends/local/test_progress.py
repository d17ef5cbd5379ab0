"""A job reports its progress: in a file, and with the command in its environment."""

import asyncio
import os
import sys
from contextlib import asynccontextmanager

import pytest

from daemon.backends.local import backend as local
from daemon.backends.local.config import LocalConfig
from daemon.backends.local.progress_file import ProgressFile, ProgressFileError, ProgressLine
from daemon.config.config import Address, Config, PoolConfig
from daemon.model.inputs import Cancel, Submit
from daemon.model.job import JobPhase
from daemon.process.serve import serving
from tests.support.daemons.daemons import job, until


@pytest.fixture
def file(tmp_path):
    return ProgressFile(tmp_path / "progress")


def test_the_last_line_counts_once_whether_the_file_grows_or_is_replaced(file, tmp_path):
    path = tmp_path / "progress"
    assert file.look() is None
    path.write_text('{"done": 0.1}\n{"done": 0.25, "speed": 1.7, "regime": 3}\n')
    assert file.look() == ProgressLine(0.25, 1.7, 3)
    assert file.look() is None
    with path.open("a") as more:
        more.write('{"done": 0.5}\n\n')
    assert file.look() == ProgressLine(0.5)
    (tmp_path / "new").write_text('{"done": 0.75}')
    (tmp_path / "new").replace(path)
    assert file.look() == ProgressLine(0.75)
    path.unlink()
    assert file.look() is None


def test_a_line_that_is_still_being_written_does_not_count_yet(file, tmp_path):
    path = tmp_path / "progress"
    path.write_text('{"done": 0.5}\n{"done": 0.')
    assert file.look() == ProgressLine(0.5)
    path.write_text('{"done": 0.5}\n{"done": 0.75}')
    assert file.look() == ProgressLine(0.75)


def test_only_the_end_of_a_long_progress_file_is_read(file, tmp_path):
    (tmp_path / "progress").write_text("nonsense\n" * 100_000 + '{"done": 0.5}\n')
    assert file.look() == ProgressLine(0.5)


def test_a_line_longer_than_what_is_read_is_reported(file, tmp_path):
    trials = ",".join(["[1,10.0]"] * 1000)
    (tmp_path / "progress").write_text(f'{{"trials": [{trials}]}}\n')
    with pytest.raises(ProgressFileError, match="more; report fewer trials"):
        file.look()


@pytest.mark.parametrize(
    "line",
    ["half of it", "{}", '{"done": 1.5}', '{"done": NaN}', '{"done": null}', "[0.5]", "[" * 4000,
     '{"done": 0.5, "speed": 0}', '{"done": 0.5, "regime": -1}', '{"done": 0.5, "eta": 7}', "\xff"],
)  # fmt: skip
@pytest.mark.parametrize("end", ["", "\n"])
def test_a_line_that_is_no_report_is_shown_with_one_that_is(file, tmp_path, line, end):
    (tmp_path / "progress").write_bytes((line + end).encode("latin-1"))
    with pytest.raises(ProgressFileError) as error:
        file.look()
    assert 'write a line like {"done": 0.4' in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert file.look() is None  # until it changes


def test_a_progress_path_that_is_not_a_file_is_not_read(file, tmp_path):
    path = tmp_path / "progress"
    for make in (path.mkdir, lambda: os.mkfifo(path), lambda: path.symlink_to("/dev/zero")):
        make()
        with pytest.raises(ProgressFileError, match="replace it by a file"):
            file.look()
        path.rmdir() if path.is_dir() else path.unlink()


@asynccontextmanager
async def machine(folder, monkeypatch, gpus=1, **settings):
    """A daemon on this machine that looks at progress files all the time."""
    monkeypatch.setattr(local, "LOOK_AT_PROGRESS", 0.01)
    config = Config(
        database=folder / "db", token_file=folder / "token", models=folder / "models",
        listen=Address("127.0.0.1", 0), forecast="none", estimates=False,
        backend=LocalConfig(folder=str(folder / "jobs"), gpus=gpus), pools=(PoolConfig("a", gpus),),
        **settings,
    )  # fmt: skip
    async with serving(config) as (daemon, _):
        yield daemon.service


def reported(service):
    return service.book.jobs["j"].progress


async def end(service):
    await service.submit([Cancel("j")])
    await until(lambda: service.book.job("j").phase is JobPhase.CANCELLED)


def test_a_job_that_knows_nothing_of_the_daemon_reports_in_a_file(tmp_path, monkeypatch):
    script = """
        echo '{"done": 0.2, "speed": 2.0}' > "$SIA_PROGRESS_FILE"
        while [ ! -e go ]; do sleep 0.02; done
        echo 'nonsense' >> "$SIA_PROGRESS_FILE"
        while [ ! -e on ]; do sleep 0.02; done
        echo '{"done": 0.1}' >> "$SIA_PROGRESS_FILE"
        sleep 1000
    """

    async def story():
        warned = []
        monkeypatch.setattr(local._Run, "refuse_report", lambda _, why: warned.append(why))
        async with machine(tmp_path, monkeypatch) as service:
            spec = job("j", command=("sh", "-c", script), cwd=str(tmp_path))
            await service.submit([Submit(spec)])
            await until(lambda: reported(service))
            assert (reported(service).done, reported(service).speed) == (0.2, 2.0)
            (tmp_path / "go").touch()
            await until(lambda: any("'nonsense' is not a report" in why for why in warned))
            (tmp_path / "on").touch()
            await until(lambda: any("has reported 0.2 done, and now 0.1" in why for why in warned))
            assert service.book.jobs["j"].phase is JobPhase.RUNNING
            await end(service)

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_job_reports_with_what_is_in_its_environment(tmp_path, monkeypatch):
    async def story():
        async with machine(tmp_path, monkeypatch) as service:
            report = f"{sys.executable} -m sia report --done 0.4 --speed 1.7 --regime 3; sleep 1000"
            spec = job("j", command=("sh", "-c", report), env={"PYTHONPATH": ":".join(sys.path)})
            await service.submit([Submit(spec)])
            await until(lambda: reported(service))
            said = reported(service)
            assert (said.done, said.speed, said.regime) == (0.4, 1.7, 3)
            await end(service)

    asyncio.run(asyncio.wait_for(story(), 60))


def test_the_iterations_of_a_trial_are_the_estimate_by_which_a_deadline_is_promised(
    tmp_path, monkeypatch
):
    """Nobody says how long the job runs; it writes an iteration every 20 ms into its file."""
    script = """
        i=0
        while i=$((i+1)); do
            echo "{\\"iterations\\": $i}" >> "$SIA_PROGRESS_FILE"; sleep 0.02
        done
    """

    async def story():
        policy = "chronus:profile=4:be=4:lease=8:capacity=1"
        async with machine(tmp_path, monkeypatch, gpus=2, policy=policy) as service:
            due = {"deadline": service.clock.now() + 1e8, "iterations": 100_000}
            spec = job("j", command=("sh", "-c", script), preemptible=0.1, **due)
            await service.submit([Submit(spec)])
            await until(lambda: reported(service))
            assert service.book.jobs["j"].trial == (1, 1)
            await until(lambda: service.book.jobs["j"].promise)
            record = service.book.jobs["j"]
            assert record.promise.guaranteed
            assert 0 < record.single < 1e6
            await until(lambda: service.book.jobs["j"].attempt == 2)
            await end(service)

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_report_that_an_earlier_daemon_has_taken_is_not_taken_again(tmp_path, monkeypatch):
    script = """
        echo '{"done": 0.2}' > "$SIA_PROGRESS_FILE"
        while [ ! -e go ]; do sleep 0.02; done
        echo '{"done": 0.4}' >> "$SIA_PROGRESS_FILE"
        sleep 1000
    """

    async def story():
        async with machine(tmp_path, monkeypatch) as service:
            spec = job("j", command=("sh", "-c", script), cwd=str(tmp_path))
            await service.submit([Submit(spec)])
            await until(lambda: reported(service))
            first = reported(service)
        async with machine(tmp_path, monkeypatch) as service:
            assert reported(service) == first
            (tmp_path / "go").touch()
            await until(lambda: reported(service) != first)
            assert reported(service).done == 0.4
            await end(service)

    asyncio.run(asyncio.wait_for(story(), 60))
