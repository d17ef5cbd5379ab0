"""A Slurm of its own for tests: munged, slurmctld, slurmd and slurmrestd under one folder.

Four fake nodes of eight fake GPUs on this machine, reachable on the loopback alone. Every process
is started in the foreground and ended by its id.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path

NODES = ("n1", "n2", "n3", "n4")
GPUS = 8
SAVED = 30.0
"""Seconds for slurmctld to save its jobs, as it does 5 s after a change."""
SAVES = "saves"
"""What the jobs are called by which slurmctld is made to save."""
AGAIN = ("timed out", "contact", "connect")
"""Words of commands that slurmctld did not answer: it is busy."""
FIRST, PORTS = 20000, 12000
"""Ports to choose from: above them are those of outgoing connections."""
NEEDED = ("munged", "slurmctld", "slurmd", "slurmrestd", "sbatch", "scontrol")
BINARIES = "/usr/sbin:/usr/local/sbin:/sbin"

CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket
CredType=cred/munge
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={root}/state/jwt.key
SlurmUser=root
SlurmdUser=root
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.%n.pid
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd.%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,bf_window=10080,sched_min_interval=0,\
batch_sched_delay=0,default_queue_depth=10000,partition_job_depth=10000,max_rpc_cnt=0
PriorityType=priority/basic
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
SlurmdParameters=config_overrides
SlurmctldTimeout=6
MessageTimeout=10
SlurmdTimeout=60
KillWait=2
MinJobAge={min_job_age}
MaxJobCount=40000
MaxArraySize=1001
{more}
NodeName={nodes} NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=64 Sockets=2 \
CoresPerSocket=32 ThreadsPerCore=1 RealMemory=500000 Gres=gpu:{gpus} State=UNKNOWN
{partitions}
"""


class SlurmMissingError(RuntimeError):
    """Slurm is not installed here."""


def missing():
    """Programs that are not here."""
    path = os.environ.get("PATH", "") + ":" + BINARIES
    return [name for name in NEEDED if shutil.which(name, path=path) is None]


def free_ports(count):
    """So many free ports in a row."""
    for _ in range(100):
        first = secrets.randbelow(PORTS) + FIRST
        held = []
        with suppress(OSError):
            for port in range(first, first + count):
                held.append(socket.socket())
                held[-1].bind(("127.0.0.1", port))
        for each in held:
            each.close()
        if len(held) == count:
            return first
    raise AssertionError("no free ports")


class SlurmCluster:
    """A cluster that tests start, break and mend.

    Args:
        root: its folder; users of jobs must be able to get there.
        partitions: name: its nodes.
    """

    def __init__(self, root, partitions, *, min_job_age=300, more=""):
        self.root = Path(root)
        self.partitions = dict(partitions)
        self.processes = {}
        self.port = free_ports(len(NODES) + 2)
        self.rest_port = self.port + len(NODES) + 1
        self.conf = self.root / "slurm.conf"
        self.env = {
            "PATH": os.environ.get("PATH", "") + ":" + BINARIES,
            "SLURM_CONF": str(self.conf),
            "LANG": "C.UTF-8",
        }
        self._write(min_job_age, more)

    @property
    def socket(self):
        """The unix socket of slurmrestd that asks for no token."""
        return self.root / "rest" / "socket"

    @property
    def url(self):
        return f"http://127.0.0.1:{self.rest_port}"

    @property
    def jwt(self):
        """A file with a token of root."""
        path = self.root / "jwt"
        if not path.exists():
            self.new_token()
        return path

    def new_token(self, lifespan=3600):
        """Have the file hold a fresh token."""
        text = self.run("scontrol", "token", "username=root", f"lifespan={lifespan}")
        path = self.root / "jwt.new"
        path.write_text(text.strip().removeprefix("SLURM_JWT="))
        path.chmod(0o600)
        path.rename(self.root / "jwt")

    def _write(self, min_job_age, more):
        for name in ("state", "spool", "log", "dev", "munge", "rest", "out"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o755)
        (self.root / "out").chmod(0o1777)
        nobody = pwd.getpwnam("nobody")
        os.chown(self.root / "rest", nobody.pw_uid, nobody.pw_gid)
        key = self.root / "munge" / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        jwt = self.root / "state" / "jwt.key"
        jwt.write_bytes(secrets.token_bytes(32))
        jwt.chmod(0o600)
        for i in range(GPUS):
            os.mknod(self.root / "dev" / f"gpu{i}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        nodes = f"n[1-{len(NODES)}]"
        lines = [
            f"PartitionName={name} Nodes={','.join(on)} MaxTime=7-0 DefaultTime=60 State=UP"
            + (" Default=YES" if not i else "")
            for i, (name, on) in enumerate(self.partitions.items())
        ]
        self.conf.write_text(
            CONF.format(
                host=socket.gethostname(), port=self.port, root=self.root, nodes=nodes, gpus=GPUS,
                first=self.port + 1, last=self.port + len(NODES), partitions="\n".join(lines),
                min_job_age=min_job_age, more=more,
            )
        )  # fmt: skip
        (self.root / "gres.conf").write_text(
            f"AutoDetect=off\nNodeName={nodes} Name=gpu File={self.root}/dev/gpu[0-{GPUS - 1}]\n"
        )
        (self.root / "cgroup.conf").write_text("CgroupAutomount=no\n")

    def _spawn(self, name, *argv, **more):
        log = (self.root / "log" / f"{name}.out").open("ab")
        self.processes[name] = subprocess.Popen(
            argv, env=self.env, cwd=self.root,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **more,
        )  # fmt: skip
        log.close()

    def start(self):
        """Start all of it; returns when all nodes take jobs."""
        folder = self.root / "munge"
        self._spawn(
            "munged", self._which("munged"), "-F", "--force", f"--socket={folder}/socket",
            f"--key-file={folder}/key", f"--pid-file={folder}/pid", f"--seed-file={folder}/seed",
            f"--log-file={folder}/log", "--num-threads=2",
        )  # fmt: skip
        self.wait((folder / "socket").exists, "munged")
        self.start_ctld("-c")
        for node in NODES:
            self._spawn(
                f"slurmd.{node}", self._which("slurmd"), "-D", "-f", str(self.conf), "-N", node
            )
        self.start_rest()
        self.wait(self.all_idle, "the nodes")

    def _which(self, name):
        found = shutil.which(name, path=self.env["PATH"])
        if found is None:
            raise SlurmMissingError(f"{name} is missing: apt-get install slurmctld slurmd")
        return found

    def start_ctld(self, *more):
        self._spawn("slurmctld", self._which("slurmctld"), "-D", "-f", str(self.conf), *more)
        self.wait(lambda: self.call("scontrol", "ping") == 0, "slurmctld")
        self.call("scancel", f"--name={SAVES}")  # it may have saved one before it was cancelled

    def start_rest(self, version="v0.0.38"):
        """Without a token on a unix socket (as nobody), with one on the loopback."""
        nobody = pwd.getpwnam("nobody")
        self.socket.unlink(missing_ok=True)
        plugins = ("-s", f"openapi/{version}")
        who = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        rest = self._which("slurmrestd")
        whole = ("env", "SLURM_BITSTR_LEN=0")  # no list of tasks is cut
        self._spawn(
            "rest", *whole, rest, *plugins, "-a", "rest_auth/local", f"unix:{self.socket}", **who
        )  # fmt: skip
        self._spawn(
            "rest.jwt",
            *whole,
            "SLURM_JWT=daemon",
            rest,
            *plugins,
            "-a",
            "rest_auth/jwt",
            f"127.0.0.1:{self.rest_port}",
            **who,
        )
        self.wait(self.socket.exists, "slurmrestd")
        self.wait(self._listens, "slurmrestd with a token")

    def _listens(self):
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.rest_port), 1):
            return True
        return False

    def stop(self, name, number=signal.SIGTERM):
        """End one of them, by its id; what it does then is over when this returns."""
        process = self.processes.pop(name, None)
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(number)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)

    def kill(self, name):
        """At once; of slurmctld only after it has saved what it knows."""
        if name == "slurmctld":
            self.saves()
        self.stop(name, signal.SIGKILL)

    @property
    def job_state(self):
        """Where slurmctld saves its jobs."""
        return self.root / "state" / "job_state"

    def saves(self):
        """Wait until slurmctld has saved what it knows now.

        It does so within 5 s of a submission, and not of each start: it is given one that comes to
        nothing. What it writes in the first moments it may have put together before.
        """
        now, told = time.time(), False
        while not self._saved_since(now + 2):
            if not told and time.time() > now + 2:
                self.call("scancel", self.sbatch("-J", SAVES, "--begin=now+1day"))
                told = True
            assert time.time() < now + SAVED, f"slurmctld has not saved its jobs\n{self.logs()}"
            time.sleep(0.05)

    def _saved_since(self, moment):
        return self.job_state.exists() and self.job_state.stat().st_mtime > moment

    def close(self):
        """End all jobs and all of it."""
        if "slurmctld" in self.processes and "munged" in self.processes:
            self.cancel_all()
        for name in [*self.processes][::-1]:
            self.stop(name)

    def cancel_all(self):
        """Have no job be there."""
        self.call("scancel", "--me", "--full")
        ids = self.run("squeue", "-h", "-o", "%A").split()
        if ids:
            self.call("scancel", "--signal=KILL", *ids)
            self.call("scancel", *ids)
        self.wait(lambda: not self.run("squeue", "-h", "-o", "%A").split(), "all jobs to be gone")

    def fresh(self):
        """As it was at the beginning: no jobs, no reservations, all nodes and partitions up."""
        for name in ("slurmctld", "rest"):
            if name not in self.processes:
                {"slurmctld": self.start_ctld, "rest": self.start_rest}[name]()
        self.cancel_all()
        self.new_token()
        for line in self.run("scontrol", "-o", "show", "reservation").splitlines():
            if line.startswith("ReservationName="):
                self.call("scontrol", "delete", line.split()[0])
        for name, nodes in self.partitions.items():
            known = self.call("scontrol", "show", "partition", name) == 0
            verb = "update" if known else "create"
            self.run(
                "scontrol", verb, f"PartitionName={name}", f"Nodes={','.join(nodes)}", "State=UP"
            )
        for line in self.run("sinfo", "-h", "-N", "-o", "%N %T").splitlines():
            node, state = line.split()
            if state.rstrip("*") not in ("idle", "allocated", "mixed", "completing"):
                self.call("scontrol", "update", f"NodeName={node}", "State=RESUME")
        self.wait(self.all_idle, "the nodes")

    def all_idle(self):
        done = self.do("sinfo", "-h", "-N", "-o", "%N %T")
        states = [line.split()[1] for line in done.stdout.splitlines()]
        return bool(states) and set(states) == {"idle"}

    def do(self, *argv, user=None):
        more = {}
        if user is not None:
            found = pwd.getpwnam(user)
            more = {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
        return subprocess.run(
            argv, env=self.env, capture_output=True, text=True, timeout=60, check=False,
            cwd=self.root / "out", **more,
        )  # fmt: skip

    def call(self, *argv):
        return self.do(*argv).returncode

    def run(self, *argv, user=None):
        """What a command says; it must not fail. What may be done twice is done again."""
        done = self.do(*argv, user=user)
        for _ in range(5):
            said = done.stderr.lower()
            busy = argv[0] != "sbatch" and any(word in said for word in AGAIN)
            if done.returncode == 0 or not busy:
                break
            done = self.do(*argv, user=user)
        assert done.returncode == 0, f"{argv}: {done.stderr}{done.stdout}"
        return done.stdout

    def sbatch(self, *options, script="sleep 300", user="nobody"):
        """Submit a script as somebody; returns the job's id."""
        path = self.root / "out" / f"script.{secrets.token_hex(4)}"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        out = ("-o", "/dev/null", "--parsable")
        text = self.run("sbatch", *out, *options, str(path), user=user)
        return text.strip().split(";")[0]

    def gate(self):
        """A file that scripts of jobs wait for (see `waits_for`), until the test makes it."""
        return self.root / "out" / f"go.{secrets.token_hex(4)}"

    def reason(self, ref):
        """Why a job waits."""
        return self.run("squeue", "-h", "-j", ref, "-o", "%r").strip()

    def squeue(self, what="%i %P %T %N"):
        """One list of words for each job that waits or runs."""
        return [line.split() for line in self.run("squeue", "-h", "-r", "-o", what).splitlines()]

    def wait(self, happens, what, seconds=30.0):
        end = time.monotonic() + seconds
        while not happens():
            if time.monotonic() > end:
                raise AssertionError(f"{what}: not within {seconds:g} s\n{self.logs()}")
            time.sleep(0.05)

    def logs(self):
        """The ends of what they say."""
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}"
            for path in sorted((self.root / "log").iterdir())
        )


def waits_for(gate):
    """What a script says that ends when the test has looked, and not by itself."""
    return f"until [ -e {gate} ]; do sleep 0.1; done"


THREE = {"vision": NODES[:2], "speech": NODES[2:3], "robots": NODES[3:]}
"""Partitions that share no nodes, each a pool."""


@contextmanager
def slurm_cluster(root, partitions=None, **more):
    """A cluster from its start to its end."""
    cluster = SlurmCluster(root, partitions or THREE, **more)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
