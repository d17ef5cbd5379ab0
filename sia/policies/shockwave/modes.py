"""Modes: how jobs change their configuration while they train (§5). Entry point `sia.modes`.

A mode determines the configurations through which a job may pass. `foresight` predicts when the job
changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from sia.contract.plugins import load_plugin, plugins

MODES = "sia.modes"
"""The entry point group of modes."""


class Mode:
    """Base of the modes: a job passes through the stated configurations in order."""

    @classmethod
    def regimes(cls, stated: int, configs: Sequence[str]) -> int:
        """Return K, the expected number of regimes of a job that states `stated` regimes."""
        return stated

    @classmethod
    def config(cls, regime: int, configs: int) -> int:
        """Return which of the stated configurations a regime has, from 0."""
        return min(regime, configs - 1)

    @classmethod
    def expected(cls, configs: Sequence[str]) -> int:
        """Return K for a job that states only its configurations, in order."""
        return len(configs)

    @classmethod
    def problem(cls, configs: Sequence[str]) -> str:
        """Return why a job cannot pass through these configurations, or an empty string."""
        return ""


class Static(Mode):
    """One configuration for ever."""

    @classmethod
    def regimes(cls, stated: int, configs: Sequence[str]) -> int:
        """Return 1."""
        return 1


class Accordion(Mode):
    """Two configurations, a small one in critical phases of training and a large one between."""

    @classmethod
    def config(cls, regime: int, configs: int) -> int:
        """Alternate between the last two configurations beyond those that are stated."""
        if regime < configs or configs < 2:
            return min(regime, configs - 1)
        return configs - 2 + (regime - configs) % 2


class Gns(Mode):
    """A batch size that doubles, up to a limit, as the noise of gradients grows."""

    @classmethod
    def regimes(cls, stated: int, configs: Sequence[str]) -> int:
        """Return the number of doublings up to the limit, which is the last configuration."""
        return min(stated, cls.expected(configs))

    @classmethod
    def expected(cls, configs: Sequence[str]) -> int:
        """Count configurations up to the largest: the batch size never shrinks."""
        sizes = _sizes(configs)
        growing = 1
        while growing < len(sizes) and sizes[growing] > sizes[growing - 1]:
            growing += 1
        return growing

    @classmethod
    def problem(cls, configs: Sequence[str]) -> str:
        """Return a message if the batch size shrinks, or an empty string."""
        sizes = _sizes(configs)
        for before, after in pairwise(sizes):
            if after < before:
                return f"batch size {after:g} follows {before:g}, but gns never shrinks"
        return ""


def _sizes(configs: Sequence[str]) -> list[float]:
    """Return the configurations as batch sizes; if one is not a number, as ascending numbers."""
    try:
        return [float(config) for config in configs]
    except ValueError:
        return [float(place) for place in range(len(configs))]


def mode_names() -> list[str]:
    """Return the names of all installed modes."""
    return [*plugins(MODES)]


def mode_of(name: str) -> type[Mode]:
    """Return a mode by name; `Mode`, which follows the stated regimes, for any other name."""
    found: type[Mode] = load_plugin(MODES, name) if name in plugins(MODES) else Mode
    return found
