"""Section `[backend]` of sia.toml for Slurm."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from msgspec import Meta, field
from msgspec.structs import replace

from daemon.config.config import BackendConfig, Config

MAX_TEXT = 4096
"""Maximum characters of a path or an address: the longest path of Linux."""

ConfigText = Annotated[str, Meta(max_length=MAX_TEXT)]
Partition = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\s,=%]+$")]


class SlurmConfig(BackendConfig, frozen=True):
    """Jobs of a Slurm cluster; the jobs of a pool are in one partition."""

    can = frozenset({"commands", "preempt", "requeue", "save_by_signal", "trials"})
    finds_nodes = True

    rest: ConfigText = ""
    """Address of slurmrestd: `unix:/PATH`, or `http://HOST:PORT` with `jwt_file` and `user`."""
    jwt_file: ConfigText = ""
    """File with a token, read again when it changes; relative to the configuration's folder."""
    user: ConfigText = ""
    """Slurm user of the token."""
    plain_http: bool = False
    """Whether the token may be sent to another machine by http://. Set it only if the network
    encrypts the connection."""
    commands: bool = False
    """Whether to run Slurm's commands, as the daemon's user. Without `rest` they do everything;
    with `rest` they requeue adopted jobs, which slurmrestd cannot do."""
    conf: ConfigText = ""
    """Slurm's configuration file for the commands, if it is not in the usual place."""
    partitions: dict[str, Partition] = field(default_factory=dict)
    """Partition of each pool; by default the partition with the name of the pool."""
    poll: Annotated[float, Meta(ge=0.05, le=60)] = 2.0
    """Seconds between two polls of Slurm."""
    adopt: bool = True
    """Whether to adopt jobs that users submit to Slurm in held state."""
    work_dir: ConfigText = "/tmp"  # noqa: S108  working directory of jobs that name none
    folder: ConfigText = ""
    """Folder for the progress reports of jobs, on a disk that nodes and daemon share; "": no
    reports."""

    def partition_of(self, pool: str) -> str:
        """Return the partition of a pool."""
        return self.partitions.get(pool, pool)

    def placed(self, base: Path, state: Path) -> Self:
        """Resolve relative paths of files against the configuration's folder."""
        jwt = str(base / self.jwt_file) if self.jwt_file else ""
        return replace(self, jwt_file=jwt, folder=str(base / self.folder) if self.folder else "")

    def problems(self, config: Config) -> Iterator[str]:
        """Check addresses, files and partitions."""
        return slurm_problems(self, [pool.name for pool in config.pools])


def _near(url: str) -> bool:
    """Return whether the address is on this machine."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def slurm_problems(config: SlurmConfig, pools: Collection[str]) -> Iterator[str]:
    """Yield a line for each problem of the section."""
    rest = config.rest
    if not rest and not config.commands:
        yield 'backend: write rest = "unix:/PATH", rest = "http://HOST:PORT" or commands = true'
    if rest and not rest.startswith(("unix:/", "http://", "https://")):
        yield f"backend.rest: {rest!r} is invalid; use unix:/PATH or http://HOST:PORT"
    if rest.startswith("http") and not (config.jwt_file and config.user):
        yield "backend.jwt_file: slurmrestd requires a token over TCP; write jwt_file and user"
    if rest.startswith("http://") and not (config.plain_http or _near(rest)):
        yield (
            f"backend.rest: {rest} would send an operator's token over the network unencrypted; "
            "write https://, or plain_http = true if something else encrypts"
        )
    if config.folder and not Path(config.folder).is_dir():
        yield (
            f"backend.folder: there is no folder {config.folder}; make it, on a disk that the "
            "nodes share, or Slurm ends each job at once"
        )
    for pool in config.partitions:
        if pool not in pools:
            yield f"backend.partitions: there is no pool {pool!r}; name a pool, or remove the line"
    taken: dict[str, str] = {}
    for pool in pools:
        other = taken.setdefault(config.partition_of(pool), pool)
        if other != pool:
            yield (
                f"backend.partitions: pools {other} and {pool} have the same partition; "
                "give each its own (partitions may share nodes)"
            )
