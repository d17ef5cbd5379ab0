"""Recovery: restores the engine from the newest snapshot and replays the later steps."""

from __future__ import annotations

import gc

from daemon.engine.engine import Engine
from daemon.journal.journal import Journal, StoredStep, parts_of
from daemon.journal.rows import decisions_json
from daemon.model.setup import Setup
from sia.console.errors import UserError
from sia.core.guard import PolicyFailedError


def recover(journal: Journal, setup: Setup) -> Engine:
    """Return the engine as of the journal's last step; for a new journal, a new engine.

    Raises UserError if a step fails, or makes other decisions than recorded, and if the policy of
    a new journal fails before its first decision.
    """
    gc.unfreeze()  # lets the collector free an earlier engine
    looks = gc.isenabled()
    gc.disable()  # the new objects are permanent; collecting takes a third of the time
    try:
        return _recover(journal, setup)
    finally:
        if looks:
            gc.enable()


def _recover(journal: Journal, setup: Setup) -> Engine:
    stored = journal.snapshots()
    if not stored and not journal.last:
        try:
            engine = Engine.new(setup)
            snapshot = engine.dump()
        except PolicyFailedError as error:
            raise UserError(
                f"daemon.policy {setup.policy}: {error}; name another policy"
            ) from error
        for part in parts_of(0, snapshot):
            journal.save(part)
        return engine
    wrong: Exception | None = None
    for seq in stored:
        try:
            engine = Engine.restore(journal.snapshot(seq))
        except ValueError as error:
            wrong = wrong or error
            continue
        reached = seq
        for record in journal.records(seq):
            if record.seq != reached + 1:
                raise UserError(f"{journal.where}: step {reached + 1} is missing; restore a backup")
            _repeat(engine, record, journal)
            reached = record.seq
        if reached != journal.last:
            raise UserError(
                f"{journal.where}: the steps end at {reached} and not at {journal.last}; restore a "
                "backup"
            )
        return engine
    raise UserError(
        f"{journal.where}: no snapshot can be read: {wrong or 'there is none'}; use the release "
        "that wrote it, or restore the database from a backup"
    ) from wrong


def _repeat(engine: Engine, record: StoredStep, journal: Journal) -> None:
    where = f"{journal.where}: record {record.seq}"
    try:
        step = engine.step(record.now, record.inputs)
    except Exception as error:
        raise UserError(
            f"{where} cannot be replayed: {error!r}; use the release that wrote it"
        ) from error
    if decisions_json(step.decisions) != record.decisions:
        raise UserError(
            f"{where} makes other decisions than recorded; use the release that wrote it, or the "
            "settings that were in force then"
        )
