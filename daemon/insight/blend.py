"""Several answers to one question as one: who was nearer lately counts for more. Pure.

Each answer is a quantile, in the logarithm of seconds. It counts twice: as it is, and moved by its
own misses and hits (`predictors.conformal`). They are averaged with weights that fall with their
pinball losses, the score by which a quantile is best if it is true (exponential weights:
Cesa-Bianchi and Lugosi 2006, chapter 2), so that none need be right in all weeks.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

from predictors.conformal import Conformal

RATES = (0.05, 0.15)
"""How fast each answer's p50 and p90 are moved: 15 % by three misses of p50 too many. Run times of
those that wait drift by factors within a day, and everybody's wait with them."""

MOVED = 4.0
"""How far at most: by a factor of fifty. Plain answers are off by as much."""

SHARP = 4.0
"""What an error by a factor of e, once, takes from a weight: a factor of e⁴ at p50's half loss."""

KEPT = 0.98
"""What is left of a loss at each later one: after 35 of them a half."""

Answers = Sequence[float | None]
"""Logarithms of seconds, of each who was asked; None where one does not know."""


class Blend:
    """Of one quantile."""

    def __init__(self, share: float, rate: float) -> None:
        """Nobody was wrong yet."""
        self._share = share
        self._moves = Conformal(rate, most=MOVED)
        self._losses: dict[int, float] = {}

    def of(self, answers: Answers) -> float:
        """Them together. One of them at least knows. O(answers)."""
        moved = self.moved(answers)
        least = min(self._losses.get(who, 0.0) for who, _ in moved)
        weights = [exp(SHARP * (least - self._losses.get(who, 0.0))) for who, _ in moved]
        together = sum(w * answer for w, (_, answer) in zip(weights, moved, strict=True))
        return together / sum(weights)

    def judge(self, who: int, *, covered: bool) -> None:
        """Learn whether it came by when this one, moved, had said."""
        self._moves.update(self._share, covered=covered, key=who)

    def weigh(self, moved: Sequence[tuple[int, float]], came: float) -> None:
        """What they were asked for came after so long, in the logarithm as well. O(answers)."""
        for who, answer in moved:
            miss = came - answer
            loss = miss * self._share if miss > 0 else -miss * (1.0 - self._share)
            self._losses[who] = KEPT * self._losses.get(who, 0.0) + loss

    def moved(self, answers: Answers) -> list[tuple[int, float]]:
        """Who knows, and what each says: as it is (0, 2, …), and moved (1, 3, …). O(answers)."""
        found = []
        for i, answer in enumerate(answers):
            if answer is not None:
                who = 2 * i + 1
                moved = answer + self._moves.shift(self._share, who)
                found += [(who - 1, answer), (who, moved)]
        return found
