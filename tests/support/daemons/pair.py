"""Two daemons on one PostgreSQL, processes of their own, and a client that loses nothing."""

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
"""Seconds for what says nothing by how long it takes."""

TOKEN = "a token of the tests, long enough".replace(" ", "-")


class Member:
    """A daemon, which can be ended and begun again."""

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
        """Its exit code, where it ends by itself."""
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
        """Status and JSON; 0 where nobody answers."""
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
    """Submits one job after the other to whoever takes it, until it is told to stop."""

    def __init__(self, members):
        self._members, self._enough = members, threading.Event()
        self.taken = []
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def stop(self):
        self._enough.set()
        self._thread.join()

    def goes_on(self, jobs=10):
        """Wait until so many more were taken."""
        enough = len(self.taken) + jobs
        until(lambda: len(self.taken) >= enough, LONG, "jobs are taken again")

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
    """Looks all the time whether who says that it leads has the lease by the database's clock.

    Whoever says so before and after the row was read led when it was read, whatever stood still
    meanwhile: nobody leads twice in between.
    """

    ROW = "SELECT epoch, place, until > clock_timestamp() FROM sia.lease"

    def __init__(self, members, url):
        self._members, self._url, self._enough = members, url, threading.Event()
        self.epochs, self.wrong = [], []
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def stop(self):
        """No two led at a time, and each that led had the next number."""
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
    """How long it took."""
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        if happens():
            return time.monotonic() - began
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {what}")


@contextmanager
def pair(folder, postgres, database):
    """Both have a way to the database that can be cut."""
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
    """The leader, and the other one: as both say in one round."""
    found = []

    def agree():
        leaders = [each for each in members if each.leads()]
        others = [each for each in members if each.stands_by()]
        found[:] = leaders + others
        return len(leaders) == len(others) == 1 and leaders != others

    until(agree, LONG, "one leads, and the other one stands by")
    return found


class Turns:
    """Who took the lease when, by the database's clock: no test has to look in time."""

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
        """When, and whether it had been given back."""
        return self._one("SELECT at, given FROM turns ORDER BY epoch DESC LIMIT 1")

    def _one(self, ask):
        return self._db.execute(ask).fetchone()

    def close(self):
        self._db.close()


def again_of(starts):
    """Attempts that were asked for again: the next leader may, where it does not find one."""
    by = {}
    for job, attempt, epoch, _ in starts:
        by.setdefault((job, attempt), []).append(int(epoch))
    for attempt, epochs in by.items():
        assert all(a < b for a, b in pairwise(epochs)), f"{attempt} was started twice: {epochs}"
    return [attempt for attempt, epochs in by.items() if len(epochs) > 1]


def check(leader, taken):
    """What was answered is done, once, by one leader after the other: the epochs of the starts."""
    assert len(taken) > 20

    def phase(job):
        return leader.ask(f"/v1/jobs/{job}")[1].get("phase")

    for job in taken:
        until(lambda job=job: phase(job) == "finished", LONG, f"{job} is over")
    world = World(leader.world)
    starts = world.lines(world.starts)
    assert {attempt for _, attempt, _, _ in starts} == {"1"}
    assert set(taken) <= {job for job, _, _, _ in starts}
    again = again_of(starts)
    if again:
        sys.stdout.write(f"{len(again)} starts were asked for again by the next leader\n")
    epochs = [int(epoch) for _, _, epoch, _ in starts]
    assert epochs == sorted(epochs), "one acted after the next had begun to"
    verifier = Verifier()
    verifier.look(read_audit(leader.url))
    trail, wrong = verifier.finding()
    assert not wrong, wrong
    assert trail.number >= len(taken)
    return epochs
