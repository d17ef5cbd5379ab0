"""What a job asks for beyond its width: stored, shown, checked at the door, and what is ignored."""

from unittest.mock import patch

import pytest
from msgspec.structs import asdict

from daemon.backends.kube.config import KubeConfig
from daemon.backends.local.config import LocalConfig
from daemon.backends.slurm.config import SlurmConfig
from daemon.cli.jobs import description, show_jobs
from sia.model import Regime
from sia.policies.sia.policy import Sia
from tests.support.daemons.doors import asked, door, story
from tests.support.servers.browsers import browser, seen

SHORT = {"pool": "vision", "gpus": 2, "duration": 748.5}  # as long as the regimes below

WISHES = {
    "min_width": 1,
    "max_width": 4,
    "demand": [[1, 100.0], [4, 40.0]],
    "deadline": 4e9,
    "soft": [[1.1, 80.0], [1.5, 20.0]],
    "value": 20.0,
    "budget": 4.0,
    "estimate": 900.0,
    "prefers": "v100",
    "slowdown": 1.5,
    "preemptible": "restart",
    "min_run_time": 600.0,
    "checkpoint": "USR1",
    "mode": "gns",
    "model": "LM",
    "regimes": [["32", 9.0, 36.5, None], ["64", 21.0, 20.0, 7.5]],
}


@story
async def test_requests_of_a_job_reach_the_core_and_are_shown(folder):
    async with door(folder, speed=1.0) as client:
        await asked(client, "POST", "/v1/jobs", {"id": "a", **SHORT, **WISHES}, status=201)
        shown = await asked(client, "GET", "/v1/jobs/a")
        assert {name: shown[name] for name in WISHES} == WISHES
        core = asdict(client.service.engine.core.state.jobs["a"].job)
        in_core = {name: wish for name, wish in WISHES.items() if name != "checkpoint"}
        in_core["demand"] = ((1, 100.0), (4, 40.0))
        in_core["soft"] = ((1.1, 80.0), (1.5, 20.0))
        in_core["regimes"] = (Regime("32", 9.0, 36.5), Regime("64", 21.0, 20.0, 7.5))
        assert {name: core[name] for name in in_core} == in_core
        assert shown["run_time"] == 900.0, "the daemon estimates with the user's estimate"


@story
async def test_widths_and_run_times_that_cannot_be_are_told(folder):
    async with door(folder, speed=1.0, policy="wfq") as client:
        quota = client.service.book.pools[SHORT["pool"]].quota
        job = {"id": "a", **SHORT, "duration": 1e6, "gpus": 2, "demand": [[1, 1000], [2, 600]]}
        wide = {"min_width": 1, "max_width": quota + 1, "estimate": 900}
        said = await asked(client, "POST", "/v1/jobs", job | wide, status=201)
        never, differ = said["notes"]
        assert never == f"max_width {quota + 1} is never reached: pool vision has {quota} GPUs"
        assert differ == (
            "demand says 10 m on 2 GPUs, and estimate 15 m: estimate counts, and demand says only "
            "how much faster other widths are"
        )
        alone = {"id": "b", "estimate": None, "max_width": quota}
        said = await asked(client, "POST", "/v1/jobs", job | alone, status=201)
        assert "notes" not in said
        shown = await asked(client, "GET", "/v1/jobs/b")
        assert shown["estimate"] == 600.0, "what the demand says of its own width"


def test_a_list_of_jobs_shows_the_gpus_asked_for_and_those_given(capsys):
    job = {"pool": "a", "phase": "running", "submitted": 0.0, "started": 1.0}
    show_jobs("Jobs", [job | {"id": "x", "gpus": 4, "width": 1}, job | {"id": "y", "gpus": 4}], 9.0)
    shown = capsys.readouterr().out.splitlines()
    assert "4, now 1" in next(line for line in shown if line.startswith("x"))
    assert "now" not in next(line for line in shown if line.startswith("y"))


STRL = "(max (nck gpu 2 0 60 100) (nck all 2 0 90 50))"


@story
async def test_a_job_brings_strl_of_its_own(folder):
    async with door(folder, speed=1.0) as client, browser(client) as visitor:
        with patch.object(Sia, "heeds", frozenset({"prefers", "strl"}), create=True):
            job = {"id": "a", **SHORT, "strl": STRL}
            said = await asked(client, "POST", "/v1/jobs", job, status=201)
        assert said["notes"] == [
            "gpu means all GPUs: no node has attributes; see attributes in [[node]]"
        ]
        shown = await asked(client, "GET", "/v1/jobs/a")
        assert (shown["strl"], shown["estimate"], shown["run_time"]) == (STRL, 60.0, 60.0)
        assert ("strl", STRL) in list(description(shown))
        assert STRL in await seen(visitor, "/ui/jobs/a")
        core = client.service.engine.core.state.jobs["a"].job
        assert (core.strl, core.estimate) == (STRL, 60.0)
        await asked(client, "POST", "/v1/jobs", job, status=200)
        await asked(client, "POST", "/v1/jobs", job | {"strl": ""}, status=409)


@story
async def test_the_page_of_a_job_and_its_description_say_what_it_asks_for(folder):
    async with door(folder, speed=1.0) as client, browser(client) as visitor:
        await asked(client, "POST", "/v1/jobs", {"id": "a", **SHORT, **WISHES}, status=201)
        page = await seen(visitor, "/ui/jobs/a")
        for words in (
            "1 to 4 GPUs", "on other", "1.5 times as long", "all work", "USR1", "gns", "worth 20",
            "Budget", "<dt>Regimes</dt>", "Policy sia does not heed deadline.",
            "Policy sia does not heed budget.",
        ):  # fmt: skip
            assert words in page, words
        said = await asked(client, "GET", "/v1/jobs/a")
        facts = list(description(said))
        assert ("preemptible", "restart") in facts
        assert ("demand", "1:100;4:40") in facts
        assert ("estimate", "15 m") in facts
        assert ("regimes", "32:9:36.5;64:21:20.0:7.5") in facts
        assert ("notes", "policy sia does not heed min_width") in facts


@story
async def test_submitting_the_same_wishes_again_is_submitting_once(folder):
    async with door(folder, speed=1.0) as client:
        job = {"id": "a", **SHORT, **WISHES}
        await asked(client, "POST", "/v1/jobs", job, status=201)
        await asked(client, "POST", "/v1/jobs", job, status=200)
        same = {key: wish for key, wish in job.items() if key != "estimate"} | {"run_time": 900}
        await asked(client, "POST", "/v1/jobs", same, status=200)
        never_null = {"demand", "soft", "prefers", "checkpoint", "mode", "model", "regimes"}
        for name in WISHES:
            status = 422 if name in never_null else 409
            await asked(client, "POST", "/v1/jobs", job | {name: None}, status=status)
        await asked(client, "POST", "/v1/jobs", job | {"deadline": 4e9 + 1}, status=409)


@pytest.mark.parametrize(
    ("wish", "pointer", "detail", "fix"),
    [
        ({"min_width": 3}, "", "min_width 3 is above the job's width of 2 GPUs", "ascend"),
        ({"max_width": 1}, "", "max_width 1 is below the job's width of 2 GPUs", "ascend"),
        ({"demand": [[1, 50], [2, 60]]}, "", "demand rises: 60 seconds on 2 GPUs", "leave out"),
        ({"demand": [[2, 50], [1, 60]]}, "", "demand does not ascend", "by GPUs, ascending"),
        ({"demand": [[1, 0]]}, "/demand", "", "above 0.0 in it"),
        ({"slowdown": 0.5}, "/slowdown", "", "at least 1"),
        ({"value": -1}, "/value", "", "at least 0"),
        ({"budget": 0}, "/budget", "", "at least 0.001"),
        ({"budget": 2000}, "/budget", "", "at most 1,000"),
        ({"preemptible": "always"}, "/preemptible", "", "use never, restart, a number"),
        ({"preemptible": 1e6}, "/preemptible", "", "at most 86,400"),
        ({"regimes": [["32", 0, 5]]}, "", "epochs above 0", "like 32:9:36.5"),
        ({"regimes": [["32", 1, -5]]}, "", "seconds above 0", "like 32:9:36.5"),
        ({"regimes": [["32", 1]]}, "/regimes", "", ""),
        ({"regimes": [["a:1;b", 1, 5]]}, "", "without : and ; (got 'a:1;b' in regime 0)", "32"),
        ({"regimes": [["\x1b[31m", 1, 5]]}, "", "printable characters", "name it like 32"),
        ({"regimes": [[" ", 1, 5]]}, "", "must name a configuration", "name it like 32"),
        ({"regimes": [["3" * 201, 1, 5]]}, "", "1 to 200 printable", "name it like 32"),
        ({"soft": "1.1=80", "deadline": 4e9}, "", "'1.1=80' is not a step", "or paper"),
        ({"soft": [[0.5, 80]], "deadline": 4e9}, "", "soft does not ascend", "from 1 up"),
        ({"soft": [[2, 80], [3, 80]], "deadline": 4e9}, "", "soft does not fall", "earn less"),
        ({"deadline": 4e12}, "/deadline", "", "at most 1e+11"),
        ({"strl": "(nck gpu 2 0 60"}, "", "strl: line 1, column 1: this parenthesis", "write )"),
        ({"strl": "(nkc gpu 2 0 6 1)"}, "", "unknown operator 'nkc'", "Did you mean 'nck'"),
        ({"strl": "(nck gpu 3 0 60 1)"}, "", "strl: K is 3, but the job has 2", "write 2"),
        ({"strl": STRL, "prefers": "gpu"}, "", "strl says what prefers says", "leave out"),
        ({"strl": "x" * 5000}, "/strl", "", "of length 4096 or less"),
        ({"checkpoint": "SIGKILL"}, "", "checkpoint 'SIGKILL' is not a signal", "USR1"),
        ({"mode": "gsn"}, "", "mode 'gsn' is not a known mode", "gns, static"),
        ({"estimate": 60, "run_time": 90}, "", "estimate and run_time are two names", "give one"),
    ],
)
def test_an_impossible_wish_is_refused_in_one_line_with_the_fix(
    tmp_path, wish, pointer, detail, fix
):
    @story
    async def told(folder):
        async with door(folder, speed=1.0) as client:
            body = {"id": "a", **SHORT, **wish}
            said = await asked(client, "POST", "/v1/jobs", body, status=422)
            words = [said["detail"], said["mend"]]
            for error in said.get("errors", []):
                words += [error["pointer"], error["detail"], error["mend"]]
            assert detail in " ".join(words), said
            assert fix in " ".join(words), said
            assert not pointer or pointer in words, said
            assert not any("\n" in word for word in words)

    told(tmp_path)


@story
async def test_a_missed_deadline_is_no_error_and_the_answer_says_so(folder):
    async with door(folder, speed=1.0) as client:
        with patch.object(Sia, "heeds", frozenset({"deadline"}), create=True):
            job = {"id": "a", **SHORT, "deadline": 3600.5}
            said = await asked(client, "POST", "/v1/jobs", job, status=201)
            missed = ["the deadline is missed: it was 1970-01-01 01:00:00 UTC"]
            assert said["notes"] == missed
            said = await asked(client, "POST", "/v1/jobs", {"jobs": [job, {**job, "id": "b"}]})
            assert [line["notes"] for line in said["jobs"]] == [missed, missed]
            assert (await asked(client, "GET", "/v1/jobs/a"))["notes"] == missed
            later = {"id": "c", **SHORT, "deadline": 4e9}
            assert "notes" not in await asked(client, "POST", "/v1/jobs", later, status=201)


@story
async def test_the_answer_names_the_wishes_that_the_policy_ignores(folder):
    async with door(folder, speed=1.0) as client:
        with patch.object(Sia, "heeds", frozenset({"demand", "value"}), create=True):
            job = {"id": "a", **SHORT, **WISHES, "deadline": None, "min_width": None}
            said = await asked(client, "POST", "/v1/jobs", job, status=201)
        assert said["notes"] == [
            *(
                f"policy sia does not heed {name}"
                for name in (
                    "max_width", "soft", "budget", "prefers", "slowdown", "preemptible",
                    "min_run_time", "checkpoint", "mode", "regimes",
                )
            ),
            "value has no effect without deadline",
        ]  # fmt: skip


@story
async def test_the_answer_says_that_nodes_have_no_attributes_that_a_job_could_prefer(folder):
    async with door(folder, speed=1.0) as client:
        with patch.object(Sia, "heeds", frozenset({"prefers", "slowdown"}), create=True):
            job = {"id": "a", **SHORT, "slowdown": 1.5}
            said = await asked(client, "POST", "/v1/jobs", {**job, "prefers": "v100"}, status=201)
            plain = await asked(client, "POST", "/v1/jobs", {**job, "id": "b"}, status=201)
        assert said["notes"] == [
            "prefers has no effect: no node has attributes; see attributes in [[node]]"
        ]
        assert plain["notes"] == ["slowdown has no effect without prefers"]


@pytest.mark.parametrize(("kind", "checkpoint", "note"), [
    (SlurmConfig, "save --now",
     "checkpoint has no effect: the backend runs no command before a stop"),
    (SlurmConfig, "USR1", None),
    (KubeConfig, "B:USR1",
     "checkpoint has no effect: the backend sends SIGTERM instead of SIGUSR1"),
    (KubeConfig, "TERM", None), (KubeConfig, "save --now", None),
    (LocalConfig, "B:USR1", None), (LocalConfig, "save --now", None),
])  # fmt: skip
@story
async def test_the_answer_says_if_the_backend_cannot_tell_a_job_to_save_its_work(
    folder, kind, checkpoint, note
):
    async with door(folder, speed=1.0) as client:
        client.service.backend.can = kind.can
        job = {"id": "a", "pool": "vision", "gpus": 2, "command": ["true"], "cwd": "/"}
        with patch.object(Sia, "heeds", frozenset({"checkpoint"}), create=True):
            said = await asked(
                client, "POST", "/v1/jobs", {**job, "checkpoint": checkpoint}, status=201
            )
            shown = await asked(client, "GET", "/v1/jobs/a")
        assert said.get("notes", []) == shown.get("notes", []) == ([] if note is None else [note])


@story
async def test_a_job_that_must_not_be_stopped_runs_on_without_a_note(folder):
    async with door(folder, speed=1.0) as client:
        job = {"id": "a", **SHORT, "preemptible": "never", "estimate": 60}
        assert "notes" not in await asked(client, "POST", "/v1/jobs", job, status=201)


@story
async def test_each_job_of_an_array_asks_for_the_same(folder):
    async with door(folder, speed=1.0) as client:
        job = {"id": "a", **SHORT, "gpus": 1, "array": 3, "deadline": 4e9, "max_width": 2}
        await asked(client, "POST", "/v1/jobs", job, status=201)
        for i in range(3):
            shown = await asked(client, "GET", f"/v1/jobs/a.{i}")
            assert (shown["deadline"], shown["max_width"]) == (4e9, 2)
