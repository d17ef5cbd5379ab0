"""The library for training loops: what it tells a daemon, and that nothing stops a training."""

import asyncio
import importlib.util
import json
import sys
from types import SimpleNamespace

import pytest

from daemon.runtime.job_token import JobTokens
from tests.support.daemons.deployed import DEPLOY
from tests.support.daemons.doors import TOKEN, asked, door, job_in, story

FOLDER = DEPLOY / "training"


def library(name="sia_progress"):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Training = library().Training

JOB = {
    "pool": "vision", "gpus": 1, "duration": 6000.0, "mode": "gns",
    "regimes": [["32", 10, 400, None], ["64", 10, 200, None]],
}  # fmt: skip


def of(url, attempt=1):
    return {
        "SIA_JOB_ID": "j", "SIA_ATTEMPT": str(attempt), "SIA_REPORT_URL": url,
        "SIA_REPORT_TOKEN": JobTokens(TOKEN).of("j", attempt),
    }  # fmt: skip


@story
async def test_a_training_loop_tells_the_daemon_its_epochs_and_its_batch_size(folder):
    async with door(folder, speed=1.0) as client:
        await asked(client, "POST", "/v1/jobs", {"id": "j", **JOB}, status=201)
        await job_in(client, "j", "running")
        url = str(client.make_url("/"))
        training = Training(20, environment=of(f"http://127.0.0.1:1,{url}"))
        told = await asyncio.to_thread(training.epoch, 5, 32)
        assert (told, training.problem) == (True, "")
        assert not await asyncio.to_thread(training.epoch, 6, 64), "a second has to pass"
        job = await asked(client, "GET", "/v1/jobs/j")
        assert (job["progress"]["done"], job["progress"]["regime"]) == (0.25, 0)
        # 5 more epochs of 400 s, and 10 of 200 s
        assert job["progress"]["end"] - job["progress"]["at"] == pytest.approx(4000.0)
        stale = Training(20, environment=of(url, attempt=2))
        assert not await asyncio.to_thread(stale.epoch, 6)
        assert stale.problem.startswith("409: ")


def test_without_the_daemon_a_loop_goes_on():
    training = Training(10, environment=of("http://127.0.0.1:1"))
    assert not training.epoch(1, 32)
    assert "refused" in training.problem
    assert not Training(10, environment={}).epoch(1), "outside of SIA"


def test_whatever_answers_in_place_of_the_daemon_a_loop_goes_on():
    async def garbage(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"no HTTP\r\n")
        writer.close()

    async def told():
        server = await asyncio.start_server(garbage, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            training = Training(10, environment=of(f"http://127.0.0.1:{port}"))
            assert not await asyncio.to_thread(training.epoch, 1)
            return training.problem

    assert asyncio.run(told()).startswith("BadStatusLine")
    wrong = Training(10, environment=of("http://a b"))
    assert not wrong.epoch(1)
    assert wrong.problem


def test_a_report_that_failed_is_not_repeated_at_once(tmp_path):
    file = tmp_path / "folder" / "progress"
    training = Training(10, environment={"SIA_PROGRESS_FILE": str(file)})
    assert not training.epoch(1)
    file.parent.mkdir()
    assert not training.epoch(2), "a daemon that does not answer would delay each epoch"
    assert training.epoch(10)


def test_the_local_backends_file_takes_the_reports(tmp_path):
    file = tmp_path / "progress"
    training = Training(10, environment={"SIA_PROGRESS_FILE": str(file)})
    assert training.epoch(4, 32)
    assert json.loads(file.read_text()) == {"done": 0.4, "regime": 0}
    assert not training.epoch(5, 64)
    assert training.regime == 1
    assert training.epoch(10, 64), "the end is always told"
    assert json.loads(file.read_text()) == {"done": 1.0, "regime": 1}


def test_a_loop_that_goes_on_from_a_checkpoint_goes_on_counting(tmp_path):
    training = Training(
        10, regime=2, config=64, environment={"SIA_PROGRESS_FILE": str(tmp_path / "progress")}
    )
    training.epoch(5, 64)
    assert training.regime == 2
    training.epoch(6, 128)
    assert training.regime == 3


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"epochs": 5, "every": 0.1}])
def test_a_training_without_epochs_is_refused(wrong):
    with pytest.raises(ValueError, match="must be"):
        Training(**wrong)


SEARCH = {"id": "search", "pool": "vision", "gpus": 1, "max_width": 1, "duration": 1e6}


@story
async def test_a_search_tells_which_trials_are_left_and_gets_their_gpus(folder):
    async with door(folder, speed=1.0, policy="wfq:weights=1:zeta=0") as client:
        await asked(client, "POST", "/v1/jobs", SEARCH, status=201)
        await job_in(client, "search", "running")
        environment = {
            "SIA_JOB_ID": "search", "SIA_ATTEMPT": "1",
            "SIA_REPORT_URL": str(client.make_url("/")),
            "SIA_REPORT_TOKEN": JobTokens(TOKEN).of("search", 1),
        }  # fmt: skip
        trials = library().Trials(environment=environment)
        told = await asyncio.to_thread(trials.left, [(1, 3600.0), (1, 1800.0)])
        assert (told, trials.problem) == (True, "")
        assert not await asyncio.to_thread(trials.left, [(1, 3600.0)]), "a second has to pass"
        assert not trials.left([])
        job = await asked(client, "GET", "/v1/jobs/search")
        assert (job["min_width"], job["max_width"], job["width"]) == (1, 2, 2)
        assert job["attempt"] == 2, "it goes on with both"


class Trial:
    """A trial as Ray Tune has it, as far as the callback looks."""

    def __init__(self, status, gpus, iterations=0, seconds=0.0):
        self.status = status
        self.placement_group_factory = SimpleNamespace(required_resources={"CPU": 1, "GPU": gpus})
        self.last_result = (
            {"training_iteration": iterations, "time_total_s": seconds} if iterations else None
        )


def test_the_callback_of_ray_tune_reports_the_trials_that_have_not_ended(monkeypatch, tmp_path):
    tune = SimpleNamespace(Callback=object)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(tune=tune))
    monkeypatch.setitem(sys.modules, "ray.tune", tune)
    monkeypatch.setitem(sys.modules, "sia_progress", library())
    file = tmp_path / "progress"
    callback = library("sia_tune").SiaCallback(10, environment={"SIA_PROGRESS_FILE": str(file)})
    assert callback.left([Trial("PENDING", 1)]) == [(1, 600.0)], "nothing is known of its pace"
    trials = [
        Trial("RUNNING", 2, 4, 40.0), Trial("PENDING", 0.5), Trial("TERMINATED", 1, 1, 30.0),
        Trial("ERROR", 1),
    ]  # fmt: skip
    callback.on_step_end(3, trials, done=False)
    assert json.loads(file.read_text()) == {"trials": [[2, 60.0], [1, 200.0]]}
    assert callback.problem == ""
    with pytest.raises(ValueError, match="iterations must be above 0"):
        library("sia_tune").SiaCallback(0)
