"""The rule that recommends a policy.

A policy is recommended if it

1. shares, and can run today (`kinds`): it knows nothing that a live system could not know;
2. makes the measured jobs end sooner on average, by at least `LEAST_GAIN`;
3. delays at most `MAX_SLOWED_PCT` percent of them, and leaves no more jobs without an end than the
   baseline does.

Of several, only those count whose gain is at least `NEARLY` of the largest. Of these it is the one
that delays fewest jobs, then the one with the smallest worst delay, then the one under which jobs
end soonest on average, then the first one given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from replay.verdict.kinds import Kind
from sia.contract.labels import name_of
from sia.limits import MAX_SLOWED_PCT

LEAST_GAIN = 1.0
"""Seconds by which jobs must end sooner on average. A smaller gain would be shown as 0 s."""

NEARLY = 0.98
"""Share of the largest gain from which a gain counts as equal: the last two percent of a gain are
not worth a late job."""

Answer = Literal[
    "share", "too many delayed", "no gain", "nothing lent", "only the future", "no policy shares",
    "pools alone", "nothing measured",
]  # fmt: skip
"""The answer of a verdict, or the reason why there is none: see `recommend`."""


class Outcome(NamedTuple):
    """What one policy gains and costs, over all measured jobs."""

    policy: str
    kind: Kind
    measured: int
    sooner_s: float
    """Mean time by which jobs end sooner than in the baseline; negative if they end later."""
    avg_jct_s: float
    slowed: int
    worst_delay_s: float
    lost: int
    """Jobs that never end, beyond those of the baseline."""
    gpu_hours_lent: float
    lenders: int
    """Pools that lend."""
    stops: int = 0
    gpu_hours_thrown_away: float = 0.0

    @property
    def slowed_pct(self) -> float:
        """Percentage of the measured jobs that end later than in the baseline."""
        return 100 * self.slowed / self.measured

    @property
    def gains(self) -> bool:
        """Whether jobs end sooner on average."""
        return self.sooner_s >= LEAST_GAIN

    @property
    def safe(self) -> bool:
        """Whether it delays few enough jobs."""
        return self.slowed_pct <= MAX_SLOWED_PCT and self.lost == 0


class Recommendation(NamedTuple):
    """The verdict.

    `today` is the recommended policy, or else the one that came closest, so that the report can
    show it. `perfect` is a policy that knows the future, as an upper bound.
    """

    answer: Answer
    today: Outcome | None
    perfect: Outcome | None
    candidates: int
    """Policies that share and can run today."""
    safe: int
    """Those of them that gain and delay few enough jobs."""

    @property
    def recommended(self) -> str | None:
        """The label of the recommended policy, if there is one."""
        return self.today.policy if self.today and self.answer == "share" else None


def recommend(outcomes: Sequence[Outcome], *, can_share: bool) -> Recommendation:
    """Apply the rule to policies without the baseline, in the order given.

    `can_share` says whether any pool has another pool to share with. Policies without a measured
    job do not count.
    """
    shown = [outcome for outcome in outcomes if outcome.measured]
    today = [outcome for outcome in shown if outcome.kind == "today"]
    gaining = [outcome for outcome in today if outcome.gains]
    safe = [outcome for outcome in gaining if outcome.safe]
    closest: Outcome | None = None
    if safe:
        enough = NEARLY * max(outcome.sooner_s for outcome in safe)
        equal = [outcome for outcome in safe if outcome.sooner_s >= enough]
        closest = min(equal, key=_most_careful_first)
    elif gaining:
        closest = min(gaining, key=lambda outcome: (outcome.lost, outcome.slowed_pct))
    elif today:
        closest = min(today, key=_best_first)
    answer = _undecided(outcomes, shown, can_share=can_share) or _decided(today, gaining, safe)
    return Recommendation(answer, closest, _bound(shown, closest), len(today), len(safe))


def _undecided(
    outcomes: Sequence[Outcome], shown: Sequence[Outcome], *, can_share: bool
) -> Answer | None:
    """Say why no policy can be recommended, whatever it gains; None if one can."""
    if not can_share:
        return "pools alone"
    if all(outcome.kind == "alone" for outcome in outcomes):
        return "no policy shares"
    if not shown:
        return "nothing measured"
    if not any(outcome.kind == "today" for outcome in shown):
        return "only the future"
    return None


def _decided(
    today: Sequence[Outcome], gaining: Sequence[Outcome], safe: Sequence[Outcome]
) -> Answer:
    if safe:
        return "share"
    if gaining:
        return "too many delayed"
    return "no gain" if any(outcome.gpu_hours_lent for outcome in today) else "nothing lent"


def _most_careful_first(outcome: Outcome) -> tuple[int, float, float]:
    return outcome.slowed, outcome.worst_delay_s, -outcome.sooner_s


def _best_first(outcome: Outcome) -> tuple[float, int, float]:
    return -outcome.sooner_s, outcome.slowed, outcome.worst_delay_s


def _bound(shown: Sequence[Outcome], today: Outcome | None) -> Outcome | None:
    """Return the policy with perfect forecasts to compare with.

    It is the same policy as `today` if that was also replayed with perfect forecasts, else SIA,
    else the one that gains most.
    """
    known = [outcome for outcome in shown if outcome.kind == "future"]
    preferred = ["sia"] if today is None else [name_of(today.policy), "sia"]
    for name in preferred:
        same = [outcome for outcome in known if name_of(outcome.policy) == name]
        if same:
            return min(same, key=_best_first)
    return min(known, key=_best_first, default=None)
