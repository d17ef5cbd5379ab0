"""Two daemon processes on one PostgreSQL, and a client that resubmits until it is answered."""

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from itertools import count, pairwise
from pathlib import Path

import psycopg

from daemon.export.audit import read_audit
from daemon.journal.audit import Verifier
from tests.support.daemons.leader import World
from tests.support.servers.proxies import proxy
from tests.support.servers.servers import free_port

CONFIG = """
[daemon]
state = "{state}"
listen = "127.0.0.1:{port}"
token_file = "{token}"
database = "{url}"
forecast = "none"
policy = "fcfs"
snapshot_every = 200
[[pool]]
name = "a"
quota = 16
"""

LONG = 60.0
"""Time limit in seconds of waits whose length is not tested."""

TOKEN = "a token of the tests, long enough".replace(" ", "-")


class Member:
    """A daemon process that can be ended and restarted."""

    def __init__(self, folder, name, world, url, between):
        self.world, self.between, self.port = world, between, free_port()
        self.url, self.folder = url, folder / name
        self.folder.mkdir()
        token = folder / "token"
        token.write_text(TOKEN)
        token.chmod(0o600)
        self.config = self.folder / "sia.toml"
        self.config.write_text(
            CONFIG.format(state=self.folder, port=self.port, token=token, url=url)
        )

    def start(self):
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, Path(__file__).with_name("leader.py"), self.world,
                 "serve", "--config", self.config],
                stdout=log, stderr=log,
            )  # fmt: skip

    def run(self):
        """Wait until the daemon ends by itself, and return its exit code."""
        self.start()
        try:
            return self.process.wait(20)
        finally:
            self.end()

    def end(self):
        for how in (signal.SIGCONT, signal.SIGKILL):
            self.process.send_signal(how)
        self.process.wait()

    def ask(self, path, body=None, within=3.0):
        """Return the status and JSON of an answer; status 0 if no daemon answers."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=within) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)
        except (OSError, ValueError):
            return 0, {}

    def leads(self):
        return self.ask("/readyz", within=1.0)[0] == 200

    def stands_by(self):
        status, said = self.ask("/readyz", within=1.0)
        return status == 503 and said.get("title") == "stand-by"


class Client:
    """Submits jobs one by one to the daemon that accepts them, until it is stopped."""

    def __init__(self, members):
        self._members, self._enough = members, threading.Event()
        self.taken = []
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def stop(self):
        self._enough.set()
        self._thread.join()

    def goes_on(self, jobs=10):
        """Wait until a number of further jobs were accepted."""
        enough = len(self.taken) + jobs
        until(lambda: len(self.taken) >= enough, LONG, "jobs are accepted again")

    def _work(self):
        for number in count():
            job = {"id": f"job-{number}", "pool": "a", "gpus": 1 + number % 2}
            while not self._enough.is_set():
                if any(each.ask("/v1/jobs", job)[0] in {200, 201} for each in self._members):
                    self.taken.append(job["id"])
                    break
                self._enough.wait(0.05)
            if self._enough.wait(0.05):
                return


class Watch:
    """Checks continuously that a daemon that reports to lead holds the lease in the database.

    A daemon that reports the same epoch before and after the row was read was the leader in
    between, even if a process was paused, because no daemon leads twice with one epoch.
    """

    ROW = "SELECT epoch, place, until > clock_timestamp() FROM sia.lease"

    def __init__(self, members, url):
        self._members, self._url, self._enough = members, url, threading.Event()
        self.epochs, self.wrong = [], []
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def stop(self):
        """Check that at most one daemon led at any time, and that epochs increased by one."""
        self._enough.set()
        self._thread.join()
        assert self.wrong == []

    def _work(self):
        with psycopg.connect(self._url, autocommit=True) as db:
            while not self._enough.wait(0.02):
                for each in self._members:
                    self._look(each, db)

    def _look(self, member, db):
        if not member.leads():
            return
        epoch, place, lasts = db.execute(self.ROW).fetchone()
        if not member.leads():
            return
        if not (lasts and place.endswith(f":{member.port}")):
            self.wrong.append((member.port, epoch, place, lasts))
        if [epoch] != self.epochs[-1:]:
            self.epochs.append(epoch)


def until(happens, seconds, what):
    """Wait for a condition; return the time it took in seconds."""
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        if happens():
            return time.monotonic() - began
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {what}")


@contextmanager
def pair(folder, postgres, database):
    """Two daemons whose connections to the database can be cut."""
    url, world = postgres.database(database), folder / "world"
    world.mkdir()
    with ExitStack() as stack:
        both = []
        for name in "AB":
            between = stack.enter_context(proxy(postgres.port))
            own = url.replace(f":{postgres.port}/", f":{between.port}/")
            both.append(Member(folder, name, world, own, between))
            both[-1].start()
            stack.callback(both[-1].end)
        yield both


def led_by(members):
    """Return the leader and the standby, as both report in the same round of requests."""
    found = []

    def agree():
        leaders = [each for each in members if each.leads()]
        others = [each for each in members if each.stands_by()]
        found[:] = leaders + others
        return len(leaders) == len(others) == 1 and leaders != others

    until(agree, LONG, "one daemon leads and the other is a standby")
    return found


class Turns:
    """A trigger that records each takeover of the lease with the database's time."""

    NOTE = """CREATE TABLE turns (epoch BIGINT, at TIMESTAMPTZ, given BOOLEAN);
        CREATE FUNCTION note_turn() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NEW.epoch <> OLD.epoch THEN
        INSERT INTO public.turns VALUES (NEW.epoch, clock_timestamp(), OLD.holder = '');
        END IF; RETURN NULL; END $$;
        CREATE TRIGGER noted AFTER UPDATE ON sia.lease FOR EACH ROW EXECUTE FUNCTION note_turn()"""

    def __init__(self, url):
        self._db = psycopg.connect(url, autocommit=True)
        self._db.execute(self.NOTE)

    def now(self):
        return self._one("SELECT clock_timestamp()")[0]

    def newest(self):
        """Return the time of the last takeover, and whether the lease had been released."""
        return self._one("SELECT at, given FROM turns ORDER BY epoch DESC LIMIT 1")

    def _one(self, ask):
        return self._db.execute(ask).fetchone()

    def close(self):
        self._db.close()


def again_of(starts):
    """Return attempts started again by the next leader, which did not find them running."""
    by = {}
    for job, attempt, epoch, _ in starts:
        by.setdefault((job, attempt), []).append(int(epoch))
    for attempt, epochs in by.items():
        assert all(a < b for a, b in pairwise(epochs)), f"{attempt} was started twice: {epochs}"
    return [attempt for attempt, epochs in by.items() if len(epochs) > 1]


def check(leader, taken):
    """Check that each accepted job ran once and that leaders did not overlap; return the epochs."""
    assert len(taken) > 20

    def phase(job):
        return leader.ask(f"/v1/jobs/{job}")[1].get("phase")

    for job in taken:
        until(lambda job=job: phase(job) == "finished", LONG, f"{job} has ended")
    world = World(leader.world)
    starts = world.lines(world.starts)
    assert {attempt for _, attempt, _, _ in starts} == {"1"}
    assert set(taken) <= {job for job, _, _, _ in starts}
    again = again_of(starts)
    if again:
        sys.stdout.write(f"{len(again)} starts were asked for again by the next leader\n")
    epochs = [int(epoch) for _, _, epoch, _ in starts]
    assert epochs == sorted(epochs), "a former leader acted after the next one had begun to act"
    verifier = Verifier()
    verifier.look(read_audit(leader.url))
    trail, wrong, _ = verifier.finding()
    assert not wrong, wrong
    assert trail.number >= len(taken)
    return epochs
