"""The daemon from the command line: real processes, and the exit codes that scripts go by."""

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from types import SimpleNamespace

import pytest

from daemon.cli import client, inspect
from daemon.cli.answers.estimates import estimate_lines
from daemon.cli.common import moment
from daemon.cli.jobs import description
from daemon.cli.lending import shadow_lines, turn_row, worth_of
from daemon.cli.serve import _tryout
from daemon.config.config import Config
from daemon.engine.engine import Engine
from daemon.journal.journal import Journal
from daemon.model.inputs import SetPool
from sia.console.main import main
from sia.limits import UNLIMITED
from tests.support.daemons.daemons import setup
from tests.support.daemons.forked import ForkedProcess

pytestmark = pytest.mark.usefixtures("leaves_nothing")

CONFIG = """
[daemon]
state = "state"
listen = "127.0.0.1:{port}"
[backend]
kind = "simulated"
speed = 1000
[[node]]
name = "n1"
gpus = 16
[[pool]]
name = "vision"
quota = 8
[[pool]]
name = "speech"
quota = 4
"""


def run(*arguments):
    """The command line in this process: starting one for each command takes ten times as long."""
    out, err = TextIOWrapper(BytesIO(), "utf-8"), StringIO()
    before = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["sia", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
    signal.signal(signal.SIGTERM, before)
    return SimpleNamespace(
        returncode=ended.value.code or 0, stdout=written(out), stderr=err.getvalue()
    )


def written(out):
    out.flush()
    return out.buffer.getvalue().decode()


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


GROUPS = ("pool", "maintenance", "webhook", "token", "audit", "wfq")
"""Commands of which the second word is a command as well."""


class Served:
    """`sia serve` in a process of its own, and the commands that ask it."""

    def __init__(self, folder, config=CONFIG):
        self.config = folder / "sia.toml"
        self.config.write_text(config.format(port=free_port()))
        self._log = folder / "log"
        self.begin()

    def begin(self):
        self.begin_only()
        self.first = self.process.stdout.readline()

    def begin_only(self):
        with self._log.open("w") as log:
            self.process = ForkedProcess(
                "serve", "--config", self.config, stdout=subprocess.PIPE, stderr=log
            )

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=60)
        self.log = self._log.read_text()
        return self.process.returncode

    def __call__(self, *arguments):
        """Run a command and return its outcome."""
        command, *rest = arguments
        names = [command, rest.pop(0)] if command in GROUPS else [command]
        return run(*names, "--config", self.config, *rest)

    def said(self, *arguments, code=0):
        """Its JSON."""
        done = self(*arguments, "--json")
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)

    def until_running(self, job_id):
        """Wait until a job that waits runs."""
        while (phase := self.said("job", job_id)["phase"]) != "running":
            assert phase in ("held", "pending", "starting"), phase
            time.sleep(0.05)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    daemon = Served(tmp_path_factory.mktemp("served"))
    yield daemon
    assert daemon.end() == 0


def test_serve_prints_its_address_and_not_the_token(served):
    token = (served.config.parent / "state" / "token").read_text().strip()
    assert served.first.startswith("serving on http://127.0.0.1:")
    assert "state/token" in served.first
    assert token not in served.first


def test_a_job_can_be_submitted_waited_for_and_described(served):
    done = served("submit", "--pool", "vision", "--id", "a", "--duration", "9s", "--tag", "k=v",
                  "--wait", "--", "train", "--fast", "a b")  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "a finished\n")
    assert done.stderr == "submitted a\n", "whoever breaks off knows the id"
    text = served("job", "a").stdout
    for line in (
        "id              a",
        "command         train --fast 'a b'",
        "tags            k=v",
        "output          sia log a, if the backend keeps it",
    ):
        assert line in text.splitlines()
    assert re.search(r"^nodes           n1:\d+$", text, re.MULTILINE)
    keys = [line[:16].strip() for line in text.splitlines()]
    assert keys.index("ran") == keys.index("ended") + 1
    assert "run time" not in keys
    assert served.said("job", "a")["phase"] == "finished"


def test_a_job_shows_its_start_and_its_virtual_start():
    said = {"id": "a", "submitted": 5.0, "started": 1795346200.5, "alone": 1795346198.99}
    lines = [*description(said)]
    assert [name for name, _ in lines] == ["id", "submitted", "started", "virtual start"]
    assert lines[-1][1] == moment(1795346198.99)
    del said["started"]
    assert [name for name, _ in description(said)] == ["id", "submitted", "virtual start"]


def test_jobs_can_be_listed_held_released_prioritized_and_cancelled(served):
    for job_id in ("h1", "h2"):
        served("submit", "--pool", "speech", "--id", job_id, "--hold", "--user", "me")
    assert [job["id"] for job in served.said("jobs", "--phase", "held")["jobs"]] == ["h2", "h1"]
    assert served.said("jobs", "--phase", "waiting") == served.said("jobs", "--phase", "pending")
    assert served("why", "h1").stdout == "it is held: sia release h1\n"
    assert served.said("why", "h1")["obstacles"] == [{"type": "hold"}]
    assert served("why", "nobody").returncode == 1
    assert "it is held: sia release h1" in served("job", "h1").stdout
    assert served("priority", "5", "h1", "h2").stdout == (
        "h1: held, priority 5\nh2: held, priority 5\n"
    )
    assert served.said("job", "h2")["priority"] == 5
    assert served("priority", "-5", "h1").returncode == 0
    assert served("release", "h1").returncode == 0
    assert served("hold", "nobody").returncode == 1
    assert served("cancel", "h2").stdout == "h2: cancelled\n"
    assert served.said("job", "h2")["phase"] == "cancelled"
    table = served("jobs", "--user", "me", "--limit", "1").stdout
    assert "1 job shown, there are more" in table


def test_an_interrupt_of_the_tests_reaches_no_daemon_that_they_started(served):
    assert os.getsid(served.process.pid) != os.getsid(0)


def test_a_relative_deadline_counts_from_now_on_the_clock_of_the_daemon(served):
    held = ("submit", "--pool", "speech", "--hold")
    served(*held, "--id", "earlier")
    assert served(*held, "--id", "due", "--deadline", " in 1h ").returncode == 0
    wrong = served(*held, "--deadline", "in one hour")
    assert wrong.returncode == 2
    assert "'one hour'" in wrong.stderr
    earlier, due = (served.said("job", job_id) for job_id in ("earlier", "due"))
    # This clock is a thousand times as fast as ours, which would give an earlier deadline.
    assert earlier["submitted"] <= due["deadline"] - 3600.0 <= due["submitted"]
    for job_id in ("earlier", "due"):
        served("cancel", job_id)


def test_requests_of_a_job_are_described_and_ignored_ones_are_reported(served):
    asked = (
        "--min-width", "1", "--deadline", "1970-01-01T00:01Z", "--preemptible", "never",
        "--value", "20", "--budget", "4", "--run-time", "2h", "--user", "me",
    )  # fmt: skip
    ran = served("submit", "--pool", "speech", "--id", "asks", "--hold", *asked)
    assert (ran.returncode, ran.stdout) == (0, "asks\n")
    assert ran.stderr.splitlines() == [
        "sia: asks: the deadline is missed: it was 1970-01-01 00:01:00 UTC",
        "sia: asks: policy sia does not heed min_width",
        "sia: asks: policy sia does not heed deadline",
        "sia: asks: policy sia does not heed value",
        "sia: asks: policy sia does not heed budget",
    ]
    shown = served("job", "asks").stdout
    assert re.search(r"^preemptible +never$", shown, re.MULTILINE)
    assert re.search(r"^notes +the deadline is missed", shown, re.MULTILINE)
    table = served("grants").stdout
    assert re.search(r"me +│? *speech.* 20 .* 1 .* 3 .* 2\.0", table), table
    served("cancel", "asks")


def test_the_state_of_an_array_counts_its_jobs_by_phase(served):
    served(
        "submit", "--pool", "speech", "--id", "arr", "--array", "3", "--duration", "9d", "--hold"
    )
    assert served("release", "arr.0").returncode == 0
    served.until_running("arr.0")
    assert served("hold", "arr").stdout == "arr: 2 held, 1 running\n"
    assert served("cancel", "arr").stdout.startswith("arr: ")


def test_whatif_says_which_jobs_would_start_sooner_and_changes_nothing(served):
    for name, span in (("w1", "500h"), ("w2", "100h")):  # too long to be lent GPUs
        served("submit", "--pool", "speech", "--id", name, "--gpus", 4, "--duration", span,
               "--run-time", span)  # fmt: skip
    served.until_running("w1")
    text = served("whatif", "--job", "w1", "--cancel", "--horizon", "30d").stdout
    assert text.startswith("simulated: the next ")
    assert "w1 (speech, 4 GPUs): would be cancelled" in text
    assert "1 job would start earlier" in text
    assert "speech: 1 job, " in text
    new = ("--pool", "speech", "--gpus", 4, "--run-time", "2h", "--horizon", "30d")
    text = served("whatif", *new).stdout
    assert "\nthe new job (speech, 4 GPUs): starts " in text
    assert "no other job would start at another time" in text
    said = served.said("whatif", "--quota", "speech=8", "--lending", "off", "--drain", "n1")
    assert (said["jobs"], said["later"]) == ([], [])
    body = {"jobs": [{"job": "w2", "gpus": 1}], "horizon": 60}
    file = served.config.parent / "question.json"
    file.write_text(json.dumps(body))
    beside = served("whatif", "--file", file, "--quota", "speech=8")
    assert (beside.returncode, "excludes other options" in beside.stderr) == (2, True)
    text = served("whatif", "--file", file).stdout
    assert "w2 (speech, 1 GPU): starts not known yet, ends not known yet (based on " in text
    assert served.said("job", "w2")["gpus"] == 4
    served("cancel", "w2")
    served("cancel", "w1")


def test_whatif_without_a_change_or_a_job_is_misuse(served):
    assert "No change given. Use --job" in served("whatif").stderr
    assert (
        "must be at most 30d" in served("whatif", "--quota", "vision=1", "--horizon", "100d").stderr
    )
    assert "'x' is not a valid whole number" in served("whatif", "--quota", "vision=x").stderr
    for wrong in (
        [],
        ["--cancel"],
        ["--gpus", 2],
        ["--job", "x", "--name", "y"],
        ["--quota", "vision"],
    ):
        assert served("whatif", *wrong).returncode == 2
    done = served("whatif", "--quota", "vision=1", "--job", "nobody", "--cancel")
    assert (done.returncode, "no job 'nobody'" in done.stderr) == (1, True)


def test_jobs_of_an_unknown_pool_are_refused(served):
    done = served("jobs", "--pool", "zzz")
    assert done.returncode == 1
    assert done.stderr == "sia: there is no pool 'zzz'; see: sia pools\n"


def test_an_unknown_pool_suggests_the_nearest_name(served):
    near = "sia: there is no pool 'visoin'; did you mean 'vision'? see: sia pools\n"
    for words in (("submit", "--pool", "visoin"), ("jobs", "--pool", "visoin"),
                  ("pool", "show", "visoin"), ("pool", "set", "visoin", "--quota", "1"),
                  ("estimates", "--pool", "visoin"), ("account", "visoin"),
                  ("token", "create", "t", "--role", "admin", "--pool", "visoin")):  # fmt: skip
        done = served(*words)
        assert (done.returncode, done.stderr) == (1, near), words
    done = served("job", "")
    assert (done.returncode, done.stderr[:28]) == (2, "sia: '' is not a valid name;")
    done = served("submit", "--pool", "vision", "--id", "a b")
    assert "use letters, digits, dots, dashes, underscores" in done.stderr


def test_a_batch_from_a_file_says_what_was_refused(served, tmp_path):
    file = tmp_path / "jobs.json"
    jobs = [{"id": "b1", "pool": "vision", "gpus": 1}, {"id": "b2", "pool": "vision", "gpus": 99}]
    file.write_text(json.dumps({"jobs": jobs}))
    done = served("submit", "--file", file)
    assert done.returncode == 1
    assert done.stdout == "b1\n"
    assert done.stderr.startswith("b2: 99 GPUs exceed the quota of pool vision")
    file.write_text(json.dumps([job | {"id": f"l{job['id']}"} for job in jobs]))
    assert served("submit", "--file", file).stdout == "lb1\n", "a list is a batch"


def test_options_that_a_file_would_override_are_refused(served, tmp_path):
    file = tmp_path / "job.json"
    file.write_text(json.dumps({"id": "dropped", "pool": "vision", "gpus": 1}))
    for more in (("--gpus", "3"), ("--hold",), ("--", "false"), ("--wait",)):
        assert served("submit", "--file", file, *more).returncode == 2, more
    assert served("job", "dropped").returncode == 1


@pytest.mark.parametrize("text", ['{"id": ', '{"gpus": NaN}', '{"gpus": 1e999}', "", "[" * 9999])
def test_a_file_that_is_not_json_is_named(served, tmp_path, text):
    file = tmp_path / "bad.json"
    file.write_text(text)
    done = served("submit", "--file", file)
    assert done.returncode == 2
    assert done.stderr.startswith(f"sia: {file}: ")
    assert "write JSON in UTF-8: one job, or a list of jobs" in done.stderr


def test_pools_are_shown_and_changed(served):
    assert [pool["name"] for pool in served.said("pools")["pools"]] == ["speech", "vision"]
    assert served.said("pool", "set", "speech", "--lend-limit", "1", "--for", "1h")["override"]
    assert "until " in served("pool", "show", "speech").stdout
    stale = served("pool", "set", "speech", "--weight", "2", "--version", "1")
    assert stale.returncode == 1
    assert "is at version 2, not 1" in stale.stderr
    assert served.said("pool", "set", "speech", "--borrow-limit", "3")["borrow_limit"] == 3
    assert served.said("pool", "set", "speech", "--borrow-limit", "none")["borrow_limit"] is None
    budgets = "--lend-budget-hours", "200", "--slowed-budget-pct", "5"
    served("pool", "set", "speech", *budgets, "--slowed-budget-minutes", "90")
    shown = served("pool", "show", "speech").stdout.splitlines()
    assert "lend budget hours  200 GPU-hours a month (UTC)" in shown
    assert "slowed budget pct  5 %" in shown
    assert "slowed budget minutes  90 min a month (UTC)" in shown
    served("pool", "set", "speech", "--lend-budget-hours", "none", "--slowed-budget-pct", "none")
    served("pool", "set", "speech", "--slowed-budget-minutes", "none")
    assert "budget minutes" not in served("pool", "show", "speech").stdout
    refused = served("pool", "set", "speech", "--slowed-budget-pct", "300")
    assert refused.returncode == 2
    assert "'300' is not a limit; write a number from 0 to 100, or none" in refused.stderr
    refused = served("pool", "set", "speech", "--weight", "1e-9")
    assert refused.returncode == 1
    assert refused.stderr == "sia: weight: 1e-09 is invalid; use at least 0.001\n"
    for limit in ("few", "-1"):
        assert served("pool", "set", "speech", "--borrow-limit", limit).returncode == 2
    assert served("pool", "set", "speech").returncode == 2
    for option, value in (("quota", "-1"), ("weight", "nan"), ("weight", "0"), ("weight", "inf"),
                          ("cells", "node"), ("cells", "node.quad=few")):  # fmt: skip
        assert served("pool", "set", "speech", f"--{option}", value).returncode == 2, value


def test_status_names_pools_that_lend_nothing(served):
    assert "lend nothing" not in served("status").stdout
    served("pool", "set", "speech", "--lend-budget-hours", "0")
    assert "lend nothing: speech (hours); reason: sia pool show NAME" in served("status").stdout
    rows = served("pools").stdout.splitlines()
    assert ["open, lends nothing" in row for row in rows if "speech" in row] == [True]
    assert ["lends nothing" in row for row in rows if "vision" in row] == [False]
    served("pool", "set", "speech", "--lend-budget-hours", "none")
    assert "lends nothing" not in served("pools").stdout


def test_nodes_are_shown_drained_and_put_into_maintenance(served):
    assert served("drain", "n1", "--why", "fan").stdout.startswith("n1: out, operator: fan; ")
    assert "operator: fan" in served("nodes").stdout
    assert served("resume", "n1").stdout.startswith("n1: in; ")
    window = served.said("maintenance", "add", "n1", "--in", "9d", "--for", "1h", "--id", "m")
    assert window["end"] - window["start"] == pytest.approx(3600)
    assert "planned" in served("maintenance", "list").stdout
    assert served("maintenance", "cancel", "m").stdout == "m: cancelled\n"
    again = served("maintenance", "cancel", "m")
    assert (again.returncode, again.stderr) == (
        1, "sia: there is no maintenance 'm'; see: sia maintenance list\n"
    )  # fmt: skip


def test_lending_is_switched_and_loans_are_listed(served):
    assert served("lending", "off").stdout == "lending is off\n"
    assert served("lending").stdout == "lending is off\n"
    assert served("lending", "shadow").stdout.startswith("lending is shadow\n")
    assert "lending is shadow" in served("status").stdout
    assert served("lending", "on").stdout.startswith("lending is on\n")
    assert "Loans: " in served("loans").stdout


def test_only_options_of_the_policy_in_force_can_be_set(served, tmp_path):
    assert served("wfq", "show").stdout == "policy: sia\n"
    for point in ("balanced", "3"):
        done = served("wfq", "set", point)
        assert (done.returncode, "name the front with --front" in done.stderr) == (2, True)
    refused = served("wfq", "set", "wfq:weights=1:zeta=0")
    assert refused.returncode == 1
    assert "the policy in force is sia, not wfq" in refused.stderr
    front = {"command": "sia wfq search", "gpus": 8, "pool": "vision", "presets": {"fifo": "wfq"}}
    point = {"number": 0, "presets": ["fifo"], "exact": "wfq"}
    for change, says in (
        ({"pool": "elsewhere"}, "which this daemon does not have"),
        ({"gpus": 64}, "the front is of 64 GPUs, but the pool has 8"),
        ({}, "no such point or preset"),
    ):
        (tmp_path / "front.json").write_text(
            json.dumps(front | {"points": [], "fifo": point} | change)
        )
        refused = served("wfq", "set", "fast", "--front", tmp_path)
        assert refused.returncode == 2
        assert says in refused.stderr


def test_sia_lending_shows_gains_and_costs_of_recall():
    recalls = {"stops": 3, "gpu_hours": 12.04, "lost_gpu_hours": 0.5, "left_s": 7200.0}
    assert worth_of(recalls) == (
        "3 spare jobs stopped for other jobs, after 12.0 GPU-hours on spare GPUs; 0.5 GPU-hours of "
        "work were lost; by estimates they would have run 2 h longer in total"
    )
    assert worth_of(recalls | {"left_s": 0.0}).endswith("work were lost")


def test_turns_and_guests_are_shown_by_pool():
    turns = {
        "pool": "vision", "turns": 1200, "late_turns": 2, "latest_s": 30.0, "guests": 40,
        "stops": 3, "wasted_gpu_s": 1800.0,
    }  # fmt: skip
    assert turn_row(turns) == ["vision", "1,200", "2", "30 s", "40", "3", "0.5"]
    assert turn_row(turns | {"late_turns": 0})[3] == "–"


def test_eta_says_when_the_turn_of_a_guest_is_expected():
    turn = {"time": 7300.0, "came": False, "guest": True}
    eta = {"id": "j", "pool": "a", "phase": "running", "now": 100.0, "why": "?", "turn": turn}
    assert [*estimate_lines(eta)][1].endswith(", in 2 h: its turn; it is a guest until then")
    turn["time"] = None
    assert [*estimate_lines(eta)][1] == "alone   its turn comes at an unknown time"


@pytest.mark.parametrize("errors", [[{"message": "x"}], "x", [1], None, {"mend": "x"}])
def test_a_refusal_of_a_proxy_with_errors_of_its_own_is_shown(errors):
    denied = client.DeniedError(502, {"detail": "no route", "mend": "wait", "errors": errors})
    assert denied.message == "no route; wait"


def test_a_missing_estimate_is_said_once():
    why = "not known yet: 10 jobs must have run first, and 3 have"
    eta = {"id": "j", "pool": "a", "phase": "pending", "now": 100.0, "why": why}
    assert [*estimate_lines(eta)][1] == "no estimate: 10 jobs must have run first, and 3 have"


def test_shadow_lending_says_for_how_many_starts_the_gpu_hours_are_unknown():
    shadow = {
        "since": 0.0, "until": None, "gpu_hours": 0.0, "jobs": 2, "sooner": 0, "gained_s": 0.0,
        "later": 0, "lost_s": 0.0, "unknown": 0, "pending": 2, "lent": [],
    }  # fmt: skip

    assert shadow_lines(shadow)[1] == (
        "the GPU-hours of 2 of these starts are not known yet: their jobs have not ended"
    )
    ended = shadow_lines(shadow | {"until": 9.0})
    assert ended[1] == (
        "the GPU-hours of 2 of these starts are not known: their jobs had not ended"
    )
    assert len(shadow_lines(shadow | {"pending": 0})) == 1


def test_times_within_events_are_printed_as_times():
    told = {"seq": 1, "time": 0.0, "kind": "would_lend", "job": "j", "data": {"at": 86400.5}}
    assert re.search(r"  at 1970-01-0[12] \d\d:\d\d:\d\d \S+$", inspect.line(told))


def test_status_counts_jobs_that_have_their_turn_but_no_gpus(served):
    assert "starting" not in served("status").stdout
    served("drain", "n1", "--why", "fan")
    served("submit", "--pool", "vision", "--id", "turned", "--duration", "1s")
    told = "starting: 1 job cannot start yet, GPUs are not free; see sia jobs --phase starting"
    assert told in served("status").stdout.splitlines()
    served("cancel", "turned")
    served("resume", "n1")


def test_events_show_booleans_as_yes_and_no():
    event = {"seq": 7, "time": 2.0, "kind": "lending", "data": {"on": False, "mode": "shadow"}}
    assert inspect.line(event).endswith("on no, mode shadow")


def test_removed_limits_are_shown_as_none_in_events():
    engine = Engine.new(setup(a=4))
    engine.step(1.0, [SetPool("a", lend_limit=2, slowed_budget_pct=1.0)])
    (told,) = engine.step(2.0, [SetPool("a", lend_limit=UNLIMITED, slowed_budget_pct=-1.0)]).notices
    assert told.data["lend_limit"] is told.data["slowed_budget_pct"] is None
    event = {"seq": 7, "time": 2.0, "kind": told.kind, "pool": "a", "data": told.data}
    assert inspect.line(event).endswith("lend_limit none, slowed_budget_pct none")


def test_the_times_of_a_promise_are_printed_as_dates():
    times = dict.fromkeys(("deadline", "by", "latest", "planned"), 1795825351.762985)
    told = inspect.line(
        {"seq": 7, "time": 1.0, "kind": "promised", "job": "a", "data": {**times, "step": 0}}
    )
    assert "1795825351" not in told
    assert told.count("2026-11-2") == len(times)


def test_events_are_printed_and_followed(served):
    served("submit", "--pool", "vision", "--duration", "1s")  # an event, were this the first test
    first = served("events").stdout.splitlines()[0]
    assert first.split()[0] == "1"
    follower = subprocess.Popen(
        [sys.executable, "-m", "sia", "events", "--config", str(served.config), "--follow",
         "--after", "0", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert json.loads(follower.stdout.readline())["seq"] == 1
    follower.send_signal(signal.SIGINT)
    assert follower.communicate(timeout=60)[1] == ""
    assert follower.returncode == 130


def test_misuse_exits_with_2_and_a_missing_daemon_with_3(served, tmp_path, monkeypatch):
    for arguments in (("submit",), ("submit", "--pool"), ("submit", "--pool", "a", "--tag", "x")):
        assert served(*arguments).returncode == 2, arguments
    port = free_port()
    monkeypatch.setenv("SIA_URL", f"http://127.0.0.1:{port}")
    gone = served("jobs")
    assert gone.returncode == 3
    assert gone.stderr == (
        f"sia: http://127.0.0.1:{port}: connection refused; start sia serve, or set SIA_URL\n"
    )
    monkeypatch.setenv("SIA_URL", "here")
    assert served("jobs").returncode == 2
    monkeypatch.delenv("SIA_URL")
    chosen = tmp_path / "chosen.toml"
    chosen.write_text('[daemon]\nlisten = "127.0.0.1:0"\n')
    unknown = served("jobs", "--config", chosen)
    assert (unknown.returncode, unknown.stderr.count("\n")) == (2, 1)
    assert unknown.stderr.startswith("sia: daemon.listen: port 0")
    monkeypatch.setenv("SIA_TOKEN_FILE", str(tmp_path / "none"))
    missing = served("jobs")
    assert missing.returncode == 2
    assert "name its token with SIA_TOKEN_FILE" in missing.stderr
    wrong = tmp_path / "token"
    wrong.write_text("not-the-token-of-it")
    wrong.chmod(0o600)
    monkeypatch.setenv("SIA_TOKEN_FILE", str(wrong))
    denied = served("jobs")
    assert denied.returncode == 1
    assert "the token is unknown" in denied.stderr


def test_another_server_than_the_daemon_is_reported_as_such(served, monkeypatch):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        monkeypatch.setenv("SIA_URL", f"http://127.0.0.1:{other.getsockname()[1]}")
        asking = subprocess.Popen(
            [sys.executable, "-m", "sia", "jobs", "--config", str(served.config)],
            stderr=subprocess.PIPE,
            text=True,
        )
        connection, _ = other.accept()
        connection.recv(1000)
        connection.sendall(b"SSH-2.0-something\r\n")
        connection.close()
        assert asking.communicate(timeout=60)[1].count("\n") == 1
        assert asking.returncode == 3


def one_line(done):
    """What a start that cannot be says: exit code 2, one line with the mend."""
    assert done.returncode == 2, done.stderr
    said = [line for line in done.stderr.splitlines() if not line.startswith("{")]  # the log
    assert len(said) == 1
    assert "; " in said[0]
    return said[0]


def test_an_occupied_port_is_reported_in_one_line(served, tmp_path):
    other = tmp_path / "sia.toml"
    other.write_text(served.config.read_text())
    assert "address already in use; stop the other process" in one_line(
        run("serve", "--config", other)
    )
    assert not (tmp_path / "state").exists()


def test_a_second_daemon_on_the_same_database_is_refused(served, tmp_path):
    other = tmp_path / "sia.toml"
    text = served.config.read_text().replace(
        'state = "state"', f'state = "{served.config.parent}/state"'
    )
    other.write_text(text.replace("listen = ", "# ") + "\n")
    text = other.read_text().replace("[daemon]", f'[daemon]\nlisten = "127.0.0.1:{free_port()}"')
    other.write_text(text)
    assert "sia.db: " in one_line(run("serve", "--config", other))


@pytest.mark.parametrize("version", [None, 99])
def test_an_invalid_or_newer_database_is_refused(tmp_path, version):
    path = tmp_path / "state" / "sia.db"
    path.parent.mkdir()
    if version is None:
        path.write_bytes(b"no database at all, " * 99)
    else:
        Journal(path).close()
        with sqlite3.connect(path) as database:
            database.execute(f"PRAGMA user_version={version}")
        database.close()
    config = tmp_path / "sia.toml"
    config.write_text(CONFIG.format(port=free_port()))
    said = one_line(run("serve", "--config", config))
    assert ("has version 99" if version else "sia.db: ") in said


def test_without_a_configuration_the_first_line_says_that_jobs_are_simulated():
    said = _tryout(Config.embedded(Path("/somewhere")))
    assert "\n" not in said
    for word in ("SIMULATED", "8 GPUs", "one pool, default", "/somewhere", "sia.toml", "sia demo"):
        assert word in said


def test_the_check_reports_all_errors_of_the_configuration(tmp_path):
    config = tmp_path / "sia.toml"
    config.write_text("[daemon]\nbogus = 1\ntick = 'x'\n[[pool]]\nname = 'a'\nquota = -1\n")
    for check in ((), ("--check",)):
        done = run("serve", "--config", config, *check)
        assert done.returncode == 2
        lines = done.stderr.splitlines()
        assert len(lines) == 3
        assert all(line.startswith(f"sia: {config}: ") for line in lines)
    config.write_text(CONFIG.format(port=1))
    done = run("serve", "--config", config, "--check")
    assert (done.returncode, done.stdout) == (0, f"{config}: valid, 2 pools with 12 GPUs\n")
    assert "may jobs be stopped and started again?" in done.stderr
    for policy, said in (
        ("fcfs", "it stops no jobs"),
        ("srtf", "each stop costs resume_cost (0s)"),
        ("jvu", "a job that it kills loses all of its work"),
        ("sia-reclaim:stops=3", "it stops only jobs that were submitted with preemptible"),
    ):
        named = CONFIG.format(port=1).replace("[daemon]\n", f'[daemon]\npolicy = "{policy}"\n')
        config.write_text(named)
        assert said in run("serve", "--config", config, "--check").stderr
    assert not (tmp_path / "state").exists()
    named = '[daemon]\npolicy = "wfq:T=0.2:W=1"\n'
    config.write_text(CONFIG.format(port=1).replace("[daemon]\n", named))
    done = run("serve", "--config", config, "--check")
    [note] = [line for line in done.stderr.splitlines() if "wfq" in line and "T and W" in line]
    assert "begins with one queue" in note


def test_the_daemon_stops_cleanly_and_continues_after_a_restart(tmp_path):
    daemon = Served(tmp_path)
    daemon("submit", "--pool", "vision", "--id", "long", "--duration", "40d")
    followed = subprocess.Popen(
        [sys.executable, "-m", "sia", "events", "--config", str(daemon.config), "--follow",
         "--after", "0"], stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    followed.stdout.readline()
    began = time.monotonic()
    assert daemon.end() == 0
    assert time.monotonic() - began < 15
    lines = [json.loads(line) for line in daemon.log.splitlines()]
    events = [line["event"] for line in lines]
    assert "serving" in events
    assert events[-2:] == ["stopping", "stopped"]
    daemon.begin()
    assert daemon.said("job", "long")["phase"] == "running"
    assert daemon.end() == 0
    followed.send_signal(signal.SIGINT)
    followed.communicate(timeout=60)
    assert followed.returncode == 130


CELLS = """
types = [
    { name = "gpu" },
    { name = "pair", child = "gpu", count = 2 },
    { name = "node", child = "pair", count = 2, node = true },
]
[[cells]]
type = "node"
nodes = ["n1"]
[[cells]]
type = "node"
nodes = ["n2"]
[quota.vision.node]
node = 1
[quota.speech.node]
pair = 1
"""

IN_CELLS = """
[daemon]
state = "state"
listen = "127.0.0.1:{port}"
cells = "cells.toml"
[[pool]]
name = "vision"
quota = 4
[[pool]]
name = "speech"
quota = 2
"""


def test_the_cells_of_a_pool_are_shown_and_changed_in_the_same_words(tmp_path):
    (tmp_path / "cells.toml").write_text(CELLS)
    daemon = Served(tmp_path, IN_CELLS)
    assert "cells              node.node=1" in daemon("pool", "show", "vision").stdout.splitlines()
    done = daemon("pool", "set", "speech", "--cells", "node.pair=2")
    assert done.returncode == 0, done.stderr
    assert "cells              node.pair=2" in daemon("pool", "show", "speech").stdout.splitlines()
    assert daemon.said("pool", "show", "speech")["quota"] == 4
    assert daemon.end() == 0


def waiting(daemon, *arguments):
    """A command that waits, in a process of its own, and what it first says."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sia", arguments[0], "--config", str(daemon.config), *arguments[1:]],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    return process, process.stdout.readline()


def test_a_waiting_client_continues_with_the_next_daemon(tmp_path):
    daemon = Served(tmp_path)
    daemon("submit", "--pool", "vision", "--id", "before")
    follower, _ = waiting(daemon, "events", "--follow", "--after", "0")
    held = ("--pool", "vision", "--hold", "--duration", "1s", "--wait", "--id")
    waits, first = waiting(daemon, "submit", *held, "w")
    assert first == "submitted w\n"
    broken, _ = waiting(daemon, "submit", *held, "b")
    broken.send_signal(signal.SIGINT)
    assert "see: sia job b" in broken.communicate(timeout=60)[0]
    assert broken.returncode == 130
    assert daemon.end() == 0
    daemon.begin()
    daemon("release", "w")
    assert waits.communicate(timeout=60)[0] == "w finished\n"
    assert waits.returncode == 0
    lines = iter(follower.stdout.readline, "")
    assert any(" started " in line and " w" in line for line in lines), "it follows no more"
    follower.send_signal(signal.SIGINT)
    follower.communicate(timeout=60)
    assert daemon.end() == 0


def test_a_client_stops_waiting_after_the_given_time(monkeypatch):
    monkeypatch.setattr(client, "PATIENCE", 0.2)
    monkeypatch.setattr(client, "RETRY", 0.1)
    asking = client.Client(client.Endpoint((f"http://127.0.0.1:{free_port()}",), "token"))
    began = time.monotonic()
    with pytest.raises(client.UnreachableError):
        asking.patiently(lambda: asking.get("/v1/pools"))
    assert time.monotonic() - began >= 0.2


def test_of_several_addresses_the_reachable_daemon_answers(served):
    token = (served.config.parent / "state" / "token").read_text().strip()
    there = re.search(r"http://[0-9.:]+", served.first)[0]
    away = f"http://127.0.0.1:{free_port()}"
    env = {**os.environ, "SIA_URL": f"{away},{there}/", "SIA_TOKEN": token}
    for words in (["pools", "--json"], ["submit", "--pool", "vision", "--duration", "1s"]):
        assert asked_with(env, *words).returncode == 0
    env["SIA_URL"] = f"{away},{away}"
    done = asked_with(env, "pools")
    assert done.returncode == 3
    assert done.stderr.startswith(f"sia: {away}: connection refused; start sia serve")


def asked_with(env, *words):
    return subprocess.run(
        [sys.executable, "-m", "sia", *words], env=env, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("http://10.1.2.3:8642", "would send the token unencrypted"),
        ("http://127.0.0.1:8642,http://gpu.example", "would send the token unencrypted"),
        ("gpu.example:8642", "is not an address"),
        ("https://gpu.example:port", "is not an address"),
    ],
)
def test_no_token_is_sent_where_others_can_read_it(url, what):
    done = asked_with({**os.environ, "SIA_URL": url, "SIA_TOKEN": "0123456789abcdef01"}, "pools")
    assert done.returncode == 2
    assert what in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(shell):
    assert "_SIA_COMPLETE" in run("completion", shell).stdout


def test_completion_offers_the_commands():
    done = subprocess.run(
        [sys.executable, "-m", "sia"],
        env={**os.environ, "_SIA_COMPLETE": "bash_complete", "COMP_WORDS": "sia dra",
             "COMP_CWORD": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "plain,drain\n"
