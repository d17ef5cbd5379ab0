"""How jobs change their configuration while they train: classes by entry point `sia.modes` (§5).

A mode says which configurations a job may pass through. When it changes is for `foresight` to
predict.
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
        """Return K, the number of regimes to expect of a job that states `stated` of them."""
        return stated

    @classmethod
    def config(cls, regime: int, configs: int) -> int:
        """Return which of the stated configurations a regime has, from 0."""
        return min(regime, configs - 1)

    @classmethod
    def expected(cls, configs: Sequence[str]) -> int:
        """Return K for a job of which only its configurations, in order, are stated."""
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
        """Return as many as the limit, the last configuration, allows."""
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
        """Return that the batch size shrinks, if it does."""
        sizes = _sizes(configs)
        for before, after in pairwise(sizes):
            if after < before:
                return f"batch size {after:g} follows {before:g}, but gns never shrinks"
        return ""


def _sizes(configs: Sequence[str]) -> list[float]:
    """Return the configurations as batch sizes; those that are no numbers count as ascending."""
    try:
        return [float(config) for config in configs]
    except ValueError:
        return [float(place) for place in range(len(configs))]


def mode_names() -> list[str]:
    """Return the names of all installed modes."""
    return [*plugins(MODES)]


def mode_of(name: str) -> type[Mode]:
    """Return a mode by name. A job with another one, or none, does what it states."""
    found: type[Mode] = load_plugin(MODES, name) if name in plugins(MODES) else Mode
    return found
