"""Answer what-if questions with two child processes, one for each future."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import msgpack
from msgspec.structs import replace

from daemon.answers.estimates.estimator import EtaService
from daemon.answers.simulate.fork import asides
from daemon.answers.simulate.futures import alive
from daemon.answers.whatif.compare import CanSee, compare, notes_of
from daemon.answers.whatif.whatif import (
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
"""Time limit in seconds: four times the duration of `WHATIF_MOST` starts on two free cores."""

WHATIF_KINDNESS = 10
"""Niceness added to the child processes. Any reader may ask, so the daemon has precedence."""


async def what_if(
    service: Service,
    foresight: ForecastService | None,
    eta: EtaService,
    asked: WhatIf,
    new: list[JobSpec],
    sees: CanSee,
) -> WhatIfAnswer | Refused:
    """Return the effect of a change, or the reason why it is refused.

    Raises:
        UnavailableError: Too many questions are waiting, or the answer takes too long.
        ChildFailedError: A defect of the daemon.
    """
    guess: GuessRunTime = _unknown if foresight is None else foresight.guess
    moment = 0.0

    async def settled() -> None:
        nonlocal moment
        await service.settled()
        moment = max(service.clock.now(), service.engine.core.state.now)

    known = eta.known(len(service.engine.core.state.jobs))
    question = Question(asked, tuple(new), guess, known, service.solver)
    as_is, changed = await asides(
        [
            lambda: msgpack.encode(_as_is(service.engine, moment, question, sees)),
            lambda: msgpack.encode(play_changed(service.engine, moment, question)),
        ],
        seconds=WHATIF_WITHIN,
        nice=WHATIF_KINDNESS,
        settled=settled,
        paused=service.watch.paused,
    )
    altered = msgpack.decode(changed, type=WhatIfOutcome)
    if altered.refused is not None:
        return altered.refused
    unchanged = msgpack.decode(as_is, type=WhatIfOutcome)
    return compare(service.book, moment, question, unchanged, altered, sees)


def _as_is(engine: Engine, now: float, question: Question, sees: CanSee) -> WhatIfOutcome:
    """Return the result of the unchanged future with its notes; called in the child."""
    pools = touched(engine, question.asked, question.new)
    notes = notes_of(alive(engine.book, pools), now, sees, question.known)
    found = play(engine, now, question)
    return replace(found, notes=(*notes, *found.notes))


def _unknown(_now: float, _spec: JobSpec) -> float:
    return 0.0
