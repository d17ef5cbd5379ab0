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
"""Characters of a path or an address: Linux knows no longer path."""

ConfigText = Annotated[str, Meta(max_length=MAX_TEXT)]
Partition = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\s,=%]+$")]


class SlurmConfig(BackendConfig, frozen=True):
    """Jobs of a Slurm cluster: a pool's are in a partition of it."""

    can = frozenset({"commands", "preempt", "requeue", "save_by_signal"})
    finds_nodes = True

    rest: ConfigText = ""
    """The address of slurmrestd: `unix:/PATH`, or `http://HOST:PORT` with `jwt_file` and `user`."""
    jwt_file: ConfigText = ""
    """A file with a token, read again when it changes; relative to the configuration's folder."""
    user: ConfigText = ""
    """The Slurm user of that token."""
    plain_http: bool = False
    """Whether the token may go to another machine by http://, where something else encrypts."""
    commands: bool = False
    """Whether to run Slurm's commands as the daemon's user: for everything without `rest`; with it
    to requeue adopted jobs, which slurmrestd cannot."""
    conf: ConfigText = ""
    """Slurm's configuration file for the commands, if it is not the usual one."""
    partitions: dict[str, Partition] = field(default_factory=dict)
    """By pool; a pool that is not here has the partition of its own name."""
    poll: Annotated[float, Meta(ge=0.05, le=60)] = 2.0
    """Seconds from one look to the next."""
    adopt: bool = True
    """Whether held jobs are taken over that others submit to Slurm."""
    work_dir: ConfigText = "/tmp"  # noqa: S108  where jobs begin that say nothing else
    folder: ConfigText = ""
    """Folder for the jobs' reports, on a disk that nodes and daemon share; "" for no reports."""

    def partition_of(self, pool: str) -> str:
        """The partition of a pool."""
        return self.partitions.get(pool, pool)

    def placed(self, base: Path, state: Path) -> Self:
        """Take files as next to the configuration if they are relative."""
        jwt = str(base / self.jwt_file) if self.jwt_file else ""
        return replace(self, jwt_file=jwt, folder=str(base / self.folder) if self.folder else "")

    def problems(self, config: Config) -> Iterator[str]:
        """Check addresses, files and partitions."""
        return slurm_problems(self, [pool.name for pool in config.pools])


def _near(url: str) -> bool:
    """Whether this is on the same machine."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def slurm_problems(config: SlurmConfig, pools: Collection[str]) -> Iterator[str]:
    """A line for each thing that is wrong with it."""
    rest = config.rest
    if not rest and not config.commands:
        yield 'backend: write rest = "unix:/PATH", rest = "http://HOST:PORT" or commands = true'
    if rest and not rest.startswith(("unix:/", "http://", "https://")):
        yield f"backend.rest: {rest!r} is invalid; use unix:/PATH or http://HOST:PORT"
    if rest.startswith("http") and not (config.jwt_file and config.user):
        yield "backend.jwt_file: slurmrestd asks for a token by TCP; write jwt_file and user"
    if rest.startswith("http://") and not (config.plain_http or _near(rest)):
        yield (
            f"backend.rest: {rest} would carry an operator's token in clear over the network; "
            "write https://, or plain_http = true where something else encrypts"
        )
    if config.folder and not Path(config.folder).is_dir():
        yield (
            f"backend.folder: there is no folder {config.folder}; make it, on a disk that the "
            "nodes share, or Slurm ends each job at once"
        )
    for pool in config.partitions:
        if pool not in pools:
            yield f"backend.partitions: there is no pool {pool!r}; name one, or leave it out"
    taken: dict[str, str] = {}
    for pool in pools:
        other = taken.setdefault(config.partition_of(pool), pool)
        if other != pool:
            yield (
                f"backend.partitions: pools {other} and {pool} have the same partition; "
                "give each its own (partitions may share nodes)"
            )
