"""Slurm backend, over slurmrestd or Slurm's commands.

Imports: backends.interface, model, runtime, config, journal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from daemon.backends.slurm.config import SlurmConfig

if TYPE_CHECKING:
    from daemon.backends.interface import Backend, BuildContext


class SlurmSection(SlurmConfig, frozen=True):
    """The section of `sia.toml` with the backend that it builds; entry point `sia.backends`."""

    def build(self, context: BuildContext) -> Backend:
        """Read the inventory from Slurm, and build the backend."""
        from daemon.backends.slurm.backend import SlurmBackend  # noqa: PLC0415  only the daemon
        from daemon.backends.slurm.discovery import door_of, find  # noqa: PLC0415  the same

        pools = [pool.name for pool in context.config.pools]
        return SlurmBackend(self, door_of(self), find(self, pools, context.journal))
