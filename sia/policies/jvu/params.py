"""The options of `jvu`, which labels, `sia.toml` and snapshots share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import fields, replace

from sia.limits import MAX_TIME, MAX_VALUE

BASE = "base"
LETTERS = "puol"

PRESETS: dict[str, dict[str, Any]] = {
    "balanced": {},
    "deadlines": {"kills": 20, "patience": 86400.0},
    "gentle": {"features": "puol", "stop": 3.0, "lost": 10.0, "kills": 1},
    "no-kills": {"features": "uo"},
}
"""What each preset sets. `gentle` kills best effort for a deadline, once and while it has done
little; `deadlines` lets best effort wait a day behind deadlines."""

Positive = Annotated[float, Meta(gt=0, le=MAX_TIME)]
Amount = Annotated[float, Meta(ge=0, le=MAX_VALUE)]


class JvuParams(Struct, frozen=True, rename={"everything": "global"}):
    """What is handled (Fig. 14), in which slots, and what ends are worth. Times are in seconds."""

    features: str = "puo"
    """Letters, or `base` for none.

    p: running jobs may be killed; u: an estimate that is up grows exponentially; o: an end after
    the deadline is still worth something; l: work that a kill throws away counts as well.
    """
    cycle: Positive = 5.0
    """Decisions are made at multiples of it, and slots are as long."""
    ahead: Positive = 600.0
    """How far ahead starts are planned."""
    delay: Annotated[float, Meta(ge=0, le=86400.0)] = 0.0
    """How long the GPUs of a killed job are not available."""
    greedy: bool = False
    """Whether jobs are planned one after the other, without a solver (§4.1.4)."""
    everything: bool = False
    """Whether all jobs are planned at once; the default."""
    slo: Amount = 1000.0
    """Value of an end by the deadline, if the job does not say."""
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
    """Cost of each GPU-hour of work that a kill throws away, with l."""
    kills: Annotated[int, Meta(ge=0, le=1000)] = 5
    """A job that was killed so often is not killed again."""
    patience: Positive = 14400.0
    """A job that waits longer, after its deadline if it has one, comes before others: only those
    start that end before it could. After twice as long, nobody else starts: no job starves."""
    starts: Annotated[int, Meta(ge=1, le=500)] = 24
    """The most starts of one job on one set of nodes that a plan considers."""
    nodes: Annotated[int, Meta(ge=1, le=10**9)] = 100
    """Limit on the nodes of branch and bound of one program."""
    iterations: Annotated[int, Meta(ge=1, le=10**12)] = 20_000
    """Limit on the simplex iterations of one program."""
    preset: Literal["", "balanced", "deadlines", "gentle", "no-kills"] = ""
    """Sets several options by one word; see `PRESETS`."""

    def __post_init__(self) -> None:
        """Check what depends on several options. Raises ValueError."""
        letters = self.letters
        if not set(letters) <= set(LETTERS) or len(set(letters)) < len(letters):
            raise ValueError(
                f"write letters of {LETTERS}, each once, or {BASE} (got {self.features!r})"
            )
        if self.greedy and self.everything:
            raise ValueError("write greedy or global, not both")
        if self.ahead < self.cycle:
            raise ValueError("ahead must be at least one cycle")
        if self.least > self.best:
            raise ValueError("least must be at most best")
        usual = {field.name: field.default for field in fields(JvuParams)}
        for name in PRESETS.get(self.preset, {}):
            if getattr(self, name) != usual[name]:
                raise ValueError(
                    f"preset {self.preset} sets {name}; leave out either this or the preset"
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
        """The letters; none for `base`."""
        return "" if self.features == BASE else self.features
