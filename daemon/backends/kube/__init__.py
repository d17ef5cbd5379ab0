"""Kubernetes backend: jobs are suspended batch/v1 Jobs.

Imports: backends.interface, model, runtime, config, journal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from daemon.backends.kube.config import KubeConfig

if TYPE_CHECKING:
    from daemon.backends.interface import Backend, BuildContext


class KubeSection(KubeConfig, frozen=True):
    """The section of `sia.toml` with the backend that it builds; entry point `sia.backends`."""

    def build(self, context: BuildContext) -> Backend:
        """Read the inventory from Kubernetes, and build the backend."""
        from daemon.backends.kube.backend import KubeBackend  # noqa: PLC0415  needs an extra
        from daemon.backends.kube.client import Kube  # noqa: PLC0415  the same
        from daemon.backends.kube.nodes import find  # noqa: PLC0415  the same

        found = find(self, [pool.name for pool in context.config.pools], context.journal)
        return KubeBackend(self, Kube(self), found, context.config.grace)
