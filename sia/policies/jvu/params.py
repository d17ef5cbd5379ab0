"""The options of `jvu`, which labels, `sia.toml` and snapshots share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta
from msgspec.structs import fields, replace

from sia.contract.labels import CheckedOptions
from sia.limits import MAX_TIME, MAX_VALUE

BASE = "base"
LETTERS = "puol"

PRESETS: dict[str, dict[str, Any]] = {
    "balanced": {},
    "deadlines": {"kills": 20, "patience": 86400.0},
    "gentle": {"features": "puol", "stop": 3.0, "lost": 10.0, "kills": 1},
    "no-kills": {"features": "uo"},
}
"""The options that each preset sets. With `gentle` a best-effort job is killed for a deadline only
once, and only while it has done little work; with `deadlines` best effort waits up to a day for
deadlines."""

MOST_SLOTS = 20_000
"""Slots of a plan: 28 hours of the usual cycles. Memory and time of a decision grow with them."""

SHORTEST = 0.1
"""Least seconds of a cycle: estimates that are up grow by cycles, step by step."""

Positive = Annotated[float, Meta(gt=0, le=MAX_TIME)]
Amount = Annotated[float, Meta(ge=0, le=MAX_VALUE)]


class JvuParams(CheckedOptions, frozen=True, rename={"everything": "global"}):
    """Features (Fig. 14), slots, and the values of ends. Times are in seconds."""

    features: str = "puo"
    """Letters, or `base` for none.

    p: running jobs may be killed; u: an estimate that has passed grows exponentially; o: an end
    after the deadline still has some value; l: the work that a kill loses counts in its cost.
    """
    cycle: Positive = 5.0
    """Time between decisions, which are made at its multiples; also the length of a slot."""
    ahead: Positive = 600.0
    """How far ahead starts are planned."""
    delay: Annotated[float, Meta(ge=0, le=86400.0)] = 0.0
    """How long the GPUs of a killed job are not available."""
    greedy: bool = False
    """Whether jobs are planned one after the other, without a solver (§4.1.4)."""
    everything: bool = False
    """Whether all jobs are planned at once; the default."""
    slo: Amount = 1000.0
    """Value of an end by the deadline, if the job states none."""
    best: Amount = 1.0
    """Value of a best-effort job that ends as soon as it is submitted."""
    least: Amount = 0.01
    """Value of a best-effort job that ends after `decay` or later."""
    decay: Positive = 3600.0
    """Within this time after its submission the value of best effort falls from `best` to `least`,
    linearly."""
    stop: Annotated[float, Meta(ge=0, le=MAX_VALUE)] = 1.01
    """Cost of a kill, as a factor on the value of the job's expected end."""
    lost: Amount = 1.0
    """Cost of each GPU-hour of work that a kill loses, with feature l."""
    kills: Annotated[int, Meta(ge=0, le=1000)] = 5
    """Largest number of kills of a job."""
    patience: Positive = 14400.0
    """After this wait (counted from its deadline, if it has one) a job comes before the others:
    they start only if they end before it can start. After twice this wait no other job starts where
    this one may run, so that no job starves."""
    starts: Annotated[int, Meta(ge=1, le=500)] = 24
    """Largest number of possible starts of one job on one set of nodes in a plan."""
    nodes: Annotated[int, Meta(ge=1, le=10**9)] = 100
    """Limit on the nodes of branch and bound of one program."""
    iterations: Annotated[int, Meta(ge=1, le=10**12)] = 20_000
    """Limit on the simplex iterations of one program."""
    early: bool = False
    """Whether what best effort is worth counts before the deadline is over, too.

    Then a job that seems to be too late whenever it starts uses idle GPUs at once. Otherwise it
    waits until its deadline is over.
    """
    preset: Literal["", "balanced", "deadlines", "gentle", "no-kills"] = ""
    """Sets several options by one word; see `PRESETS`."""

    def __post_init__(self) -> None:
        """Check the options against each other. Raises ValueError."""
        letters = self.letters
        if not set(letters) <= set(LETTERS) or len(set(letters)) < len(letters):
            raise ValueError(
                f"write letters of {LETTERS}, each once, or {BASE} (got {self.features!r})"
            )
        if self.greedy and self.everything:
            raise ValueError("write greedy or global, not both")
        if self.cycle < SHORTEST:
            raise ValueError(f"cycle must be at least {SHORTEST:g} (got {self.cycle:g}); change it")
        if self.ahead < self.cycle:
            raise ValueError("ahead must be at least one cycle")
        if self.ahead > MOST_SLOTS * self.cycle:
            raise ValueError(
                f"ahead must be at most {MOST_SLOTS} cycles; raise cycle, or lower ahead"
            )
        if self.least > self.best:
            raise ValueError("least must be at most best")
        usual = {field.name: field.default for field in fields(JvuParams)}
        self.check_given({name: value for name, value in self._set() if value != usual[name]})

    def _set(self) -> list[tuple[str, Any]]:
        """Return the options that the preset sets, as they are here."""
        return [(name, getattr(self, name)) for name in PRESETS.get(self.preset, {})]

    def check_given(self, given: Mapping[str, Any]) -> None:
        """Refuse an option that contradicts the preset. Raises ValueError."""
        for name, value in self._set():
            preset = PRESETS[self.preset][name]
            agree = set(value) == set(preset) if name == "features" else value == preset
            if name in given and not agree:
                raise ValueError(
                    f"preset {self.preset} sets {name}; leave out either this or the preset "
                    f"(which has {preset}, not {value})"
                )

    @property
    def effective(self) -> JvuParams:
        """The options with those of the preset."""
        return replace(self, preset="", **PRESETS.get(self.preset, {}))

    @property
    def slots(self) -> int:
        """The number of slots in which starts are planned."""
        return max(1, int(self.ahead / self.cycle + 1e-9))

    @property
    def letters(self) -> str:
        """The letters of the features; empty for `base`."""
        return "" if self.features == BASE else self.features
