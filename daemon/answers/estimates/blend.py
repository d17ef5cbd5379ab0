"""Combine estimates by exponentially weighted accuracy. Pure.

Each estimate is a quantile of the logarithm of seconds. The ensemble averages them with weights
that fall exponentially with their pinball losses, the proper score of a quantile (Cesa-Bianchi and
Lugosi 2006, chapter 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

SHARP = 0.3
"""Learning rate of the ensemble. Above 1, a single burst of arrivals flips the weights."""

KEPT = 0.995
"""Factor by which a loss decays at each later update; its half-life is about 140 updates."""

Answers = Sequence[float | None]
"""Estimates as logarithms of seconds, one per source; None where a source has no estimate."""


class EstimateEnsemble:
    """Combine estimates of one quantile by exponentially weighted accuracy."""

    def __init__(self, share: float) -> None:
        """Start with no loss for any source; `share` is the quantile, between 0 and 1."""
        self._share = share
        self._losses: dict[int, float] = {}

    def of(self, answers: Answers) -> float:
        """Return the weighted average. At least one source must have an estimate. O(answers)."""
        known = [(who, answer) for who, answer in enumerate(answers) if answer is not None]
        losses = [self._losses.get(who, 0.0) for who, _ in known]
        weights = [exp(SHARP * (min(losses) - loss)) for loss in losses]
        together = sum(w * answer for w, (_, answer) in zip(weights, known, strict=True))
        return together / sum(weights)

    def learn(self, answers: Answers, came: float) -> None:
        """Update the losses with the observed value, a logarithm of seconds. O(answers).

        The losses stay unchanged if any source had no estimate, as losses are only comparable over
        the same events.
        """
        known = [answer for answer in answers if answer is not None]
        if len(known) < len(answers):
            return
        for who, answer in enumerate(known):
            miss = came - answer
            loss = miss * self._share if miss > 0 else -miss * (1.0 - self._share)
            self._losses[who] = KEPT * self._losses.get(who, 0.0) + loss
