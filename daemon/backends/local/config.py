"""`[backend] kind = "local"`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from msgspec import Meta
from msgspec.structs import replace

from daemon.backends.local import CAN
from daemon.backends.local.gpus import count_gpus
from daemon.config.config import BackendConfig, Config
from daemon.model.names import GpuCount
from sia.wording import counted

if TYPE_CHECKING:
    from daemon.backends.interface import Backend, BuildContext

MACHINE = "local"
"""Name of this machine as a node, if the configuration does not name a node."""


class LocalConfig(BackendConfig, frozen=True):
    """Processes on this machine."""

    can = CAN
    jobs_are_here = True

    folder: str = "jobs"
    """Folder of the jobs' logs and states; a relative path is in the state folder."""
    gpus: GpuCount | None = None
    """Number of GPUs of this machine; if omitted, the daemon detects them."""
    kill_after: Annotated[float, Meta(gt=0, le=1e9)] = 10.0
    """Seconds from SIGTERM to SIGKILL."""

    def placed(self, base: Path, state: Path) -> Self:
        """Resolve a relative path of the folder against the state folder."""
        return replace(self, folder=str(state / self.folder))

    def problems(self, config: Config) -> Iterator[str]:
        """Check that this is the only node, and that it has the GPUs that the pools own."""
        owned = sum(pool.quota for pool in config.pools)
        if len(config.nodes) > 1:
            yield "node: backend local has only this machine; remove all but one [[node]]"
        if self.gpus is not None and self.gpus < owned:
            yield (
                f"backend.gpus: is {self.gpus}, and the pools own {owned:,}; "
                "give the pools smaller quotas"
            )
        if self.gpus is None and not config.nodes and (found := count_gpus()) < owned:
            yield (
                f"backend.gpus: this machine has {counted(found, 'GPU')}, and the pools own "
                f"{owned:,}; give the pools smaller quotas, or declare backend.gpus"
            )

    def build(self, context: BuildContext) -> Backend:
        """Build the backend with the configured node, or else with all GPUs of this machine."""
        from daemon.backends.local.backend import LocalBackend  # noqa: PLC0415  only the daemon

        nodes = context.config.nodes
        name, gpus = (nodes[0].name, nodes[0].gpus) if nodes else (MACHINE, self.gpus)
        return LocalBackend(Path(self.folder), gpus, self.kill_after, name)
