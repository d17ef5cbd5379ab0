"""Several answers to one question as one: who was nearer lately counts for more. Pure.

Each answer is a quantile, in the logarithm of seconds. They are averaged with weights that fall
with their pinball losses, the score by which a quantile is best if it is true (exponential weights:
Cesa-Bianchi and Lugosi 2006, chapter 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

SHARP = 0.3
"""What a loss of one takes from the logarithm of a weight. With more than 1, one burst decides who
is believed, and the next is another's."""

KEPT = 0.995
"""What is left of a loss at each later one: after 140 of them a half."""

Answers = Sequence[float | None]
"""Logarithms of seconds, of each who was asked; None where one does not know."""


class EstimateEnsemble:
    """Of one quantile."""

    def __init__(self, share: float) -> None:
        """Nobody was wrong yet."""
        self._share = share
        self._losses: dict[int, float] = {}

    def of(self, answers: Answers) -> float:
        """Them together; one of them at least knows. O(answers)."""
        known = [(who, answer) for who, answer in enumerate(answers) if answer is not None]
        losses = [self._losses.get(who, 0.0) for who, _ in known]
        weights = [exp(SHARP * (min(losses) - loss)) for loss in losses]
        together = sum(w * answer for w, (_, answer) in zip(weights, known, strict=True))
        return together / sum(weights)

    def learn(self, answers: Answers, came: float) -> None:
        """What they were asked for came after so long, in the logarithm as well. O(answers).

        Where one of them did not know, nobody is compared.
        """
        known = [answer for answer in answers if answer is not None]
        if len(known) < len(answers):
            return
        for who, answer in enumerate(known):
            miss = came - answer
            loss = miss * self._share if miss > 0 else -miss * (1.0 - self._share)
            self._losses[who] = KEPT * self._losses.get(who, 0.0) + loss
