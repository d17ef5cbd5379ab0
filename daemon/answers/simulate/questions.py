"""What-if questions, asked of a service: two children, one for each future."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import json

from daemon.answers.simulate.compare import CanSee, compare, notes_of
from daemon.answers.simulate.fork import asides
from daemon.answers.simulate.futures import alive
from daemon.answers.simulate.whatif import (
    GuessRunTime,
    Question,
    WhatIfOutcome,
    play,
    play_changed,
    touched,
)
from daemon.engine.engine import Engine
from daemon.forecasts.forecaster import ForecastService
from daemon.model.job import JobSpec
from daemon.model.outputs import Refused
from daemon.wire.whatif import WhatIf, WhatIfAnswer

if TYPE_CHECKING:
    from daemon.service.service import Service

WHATIF_WITHIN = 20.0
"""Seconds for an answer: four times what `WHATIF_MOST` starts take where two cores are free."""

WHATIF_KINDNESS = 10
"""How far children step back for the daemon: whoever may look may ask, one question at a time."""


async def what_if(
    service: Service,
    foresight: ForecastService | None,
    asked: WhatIf,
    new: list[JobSpec],
    sees: CanSee,
) -> WhatIfAnswer | Refused:
    """What would come of it, or why it cannot be.

    Raises:
        UnavailableError: Too much is asked at this moment, or it takes too long.
        AsideError: A defect.
    """
    guess: GuessRunTime = _unknown if foresight is None else foresight.guess
    question, moment = Question(asked, tuple(new), guess), 0.0

    async def settled() -> None:
        nonlocal moment
        await service.settled()
        moment = max(service.clock.now(), service.engine.core.state.now)

    as_is, changed = await asides(
        [
            lambda: json.encode(_as_is(service.engine, moment, question, sees)),
            lambda: json.encode(play_changed(service.engine, moment, question)),
        ],
        seconds=WHATIF_WITHIN,
        nice=WHATIF_KINDNESS,
        settled=settled,
        paused=service.watch.paused,
    )
    found = json.decode(changed, type=WhatIfOutcome)
    if found.refused is not None:
        return found.refused
    told = json.decode(as_is, type=WhatIfOutcome)
    assert told.played is not None, "nothing was asked of it that could be refused"
    assert found.played is not None, "what is not refused is played"
    return compare(service.book, moment, question, told.played, found.played, sees, told.notes)


def _as_is(engine: Engine, now: float, question: Question, sees: CanSee) -> WhatIfOutcome:
    """What the child of the unchanged future says; the notes too, while it has all at hand."""
    pools = touched(engine, question.asked, question.new)
    notes = tuple(notes_of(alive(engine.book, pools), now, sees))
    return WhatIfOutcome(played=play(engine, now, question).played, notes=notes)


def _unknown(_now: float, _spec: JobSpec) -> float:
    return 0.0
