"""A real Slurm for tests: munged, slurmctld, slurmd and slurmrestd below one folder.

Four fake nodes with eight fake GPUs each, reachable only on the loopback interface. Every process
runs in the foreground and is ended by its pid.
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
"""Time limit in seconds for slurmctld to save its jobs; it saves 5 s after a change."""
SAVES = "saves"
"""Name of jobs that are submitted only to make slurmctld save its state."""
AGAIN = ("timed out", "contact", "connect")
"""Error messages of commands when slurmctld is too busy to answer."""
FIRST, PORTS = 20000, 12000
"""Ports to choose from; ports above are used for outgoing connections."""
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
ProctrackType=proctrack/linuxproc
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
    """Slurm is not installed."""


def missing():
    """Return the programs that are not installed."""
    path = os.environ.get("PATH", "") + ":" + BINARIES
    return [name for name in NEEDED if shutil.which(name, path=path) is None]


def free_ports(count):
    """Return the first of `count` consecutive free ports."""
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
    """A cluster that tests start, break and repair.

    Args:
        root: Folder of the cluster; the users of jobs must be able to enter it.
        partitions: Nodes by partition.
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
        """The unix socket of the slurmrestd that requires no token."""
        return self.root / "rest" / "socket"

    @property
    def url(self):
        return f"http://127.0.0.1:{self.rest_port}"

    @property
    def jwt(self):
        """File with a token of root."""
        path = self.root / "jwt"
        if not path.exists():
            self.new_token()
        return path

    def new_token(self, lifespan=3600):
        """Write a fresh token to the file."""
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
        """Start all daemons; return when all nodes accept jobs."""
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
        # slurmctld may have saved such a job before the job was cancelled
        self.call("scancel", f"--name={SAVES}")

    def start_rest(self, version="v0.0.38"):
        """Start slurmrestd twice: on a unix socket without a token (as nobody), on TCP with one."""
        nobody = pwd.getpwnam("nobody")
        self.socket.unlink(missing_ok=True)
        plugins = ("-s", f"openapi/{version}")
        who = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        rest = self._which("slurmrestd")
        whole = ("env", "SLURM_BITSTR_LEN=0")  # do not cut task lists
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
        """End a daemon by its pid and wait for its exit."""
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
        """Kill a daemon with SIGKILL; slurmctld only after it has saved its state."""
        if name == "slurmctld":
            self.saves()
        self.stop(name, signal.SIGKILL)

    @property
    def job_state(self):
        """File in which slurmctld saves its jobs."""
        return self.root / "state" / "job_state"

    def saves(self):
        """Wait until slurmctld has saved its present state.

        slurmctld saves within 5 s of a submission, but not of each start, so this submits a job
        that never runs. A file written within 2 s of the call may still hold an older state.
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
        """End all jobs and all daemons."""
        if "slurmctld" in self.processes and "munged" in self.processes:
            self.cancel_all()
        for name in [*self.processes][::-1]:
            self.stop(name)

    def cancel_all(self):
        """Cancel all jobs and wait until they are gone."""
        self.call("scancel", "--me", "--full")
        ids = self.run("squeue", "-h", "-o", "%A").split()
        if ids:
            self.call("scancel", "--signal=KILL", *ids)
            self.call("scancel", *ids)
        self.wait(lambda: not self.run("squeue", "-h", "-o", "%A").split(), "all jobs to be gone")

    def fresh(self):
        """Restore the first state: no jobs, no reservations, all nodes and partitions up."""
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
        """Return the output of a command, which must succeed; repeat it while slurmctld is busy."""
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
        """Submit a script as a user; return the job's id."""
        path = self.root / "out" / f"script.{secrets.token_hex(4)}"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        out = ("-o", "/dev/null", "--parsable")
        text = self.run("sbatch", *out, *options, str(path), user=user)
        return text.strip().split(";")[0]

    def gate(self):
        """Path of a file that job scripts wait for (see `waits_for`); the test creates the file."""
        return self.root / "out" / f"go.{secrets.token_hex(4)}"

    def reason(self, ref):
        """Return Slurm's reason why a job is pending."""
        return self.run("squeue", "-h", "-j", ref, "-o", "%r").strip()

    def squeue(self, what="%i %P %T %N"):
        """Return the columns of squeue for each pending or running job."""
        return [line.split() for line in self.run("squeue", "-h", "-r", "-o", what).splitlines()]

    def wait(self, happens, what, seconds=30.0):
        end = time.monotonic() + seconds
        while not happens():
            if time.monotonic() > end:
                raise AssertionError(f"{what}: not within {seconds:g} s\n{self.logs()}")
            time.sleep(0.05)

    def logs(self):
        """Return the ends of all log files."""
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}"
            for path in sorted((self.root / "log").iterdir())
        )


def waits_for(gate):
    """Return a script that runs until the file `gate` exists."""
    return f"until [ -e {gate} ]; do sleep 0.1; done"


THREE = {"vision": NODES[:2], "speech": NODES[2:3], "robots": NODES[3:]}
"""Partitions without common nodes; each is a pool."""


@contextmanager
def slurm_cluster(root, partitions=None, **more):
    """Run a cluster for the length of a test run."""
    cluster = SlurmCluster(root, partitions or THREE, **more)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
