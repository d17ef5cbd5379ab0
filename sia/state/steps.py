"""Steps of a deadline as text: `1.1:80+1.2:50+1.5:20`, or `paper` for these."""

from __future__ import annotations

from math import inf, isfinite

PAPER = "paper"
PAPER_STEPS = ((1.1, 80.0), (1.2, 50.0), (1.5, 20.0))
"""The steps that follow from the paper's survey of users (Chronus, §4.1)."""

FIX = "write MULTIPLE:REWARD+MULTIPLE:REWARD, like 1.1:80+1.2:50+1.5:20, or paper"


def parse_steps(text: str) -> tuple[tuple[float, float], ...]:
    """Parse steps: multiples of the time from submission to deadline, each with its reward.

    Raises ValueError, with the problem and the fix, for a text of another form. `sia.state.bounds`
    checks the values of the numbers.
    """
    text = text.strip()
    if text == PAPER:
        return PAPER_STEPS
    return tuple(_step(part) for part in text.split("+")) if text else ()


def _step(part: str) -> tuple[float, float]:
    multiple, _, reward = part.partition(":")
    try:
        found = float(multiple), float(reward)
    except ValueError:
        found = inf, inf
    if "_" in part or not all(map(isfinite, found)):
        raise ValueError(f"{part!a} is not a step; {FIX}")
    return found


def steps_text(steps: tuple[tuple[float, float], ...]) -> str:
    """Return steps as text that `parse_steps` reads."""
    return "+".join(f"{_number(multiple)}:{_number(reward)}" for multiple, reward in steps)


def _number(value: float) -> str:
    return repr(int(value)) if value == int(value) else repr(value)
