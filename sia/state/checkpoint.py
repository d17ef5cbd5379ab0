"""Checkpoints: the signal or command that asks a job to save its work before a stop."""

from __future__ import annotations

import shlex

from msgspec import Struct

SIGNALS = ("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TERM", "CONT", "WINCH", "URG", "IO")
"""Signals that a program can handle and that do not mean an error of the program.

SIGKILL and SIGSTOP cannot be handled. SIGSEGV and the like mean an error of the program.
"""

UNHANDLED = ("KILL", "STOP")

PREFIX = "SIG"

BATCH = "B:"
"""Prefix of a signal for the main process alone, as in Slurm's `--signal`."""


class CheckpointSignal(Struct, frozen=True):
    """Send this signal to the processes of the job."""

    name: str
    """The name with its prefix, like `SIGUSR1`."""
    main: bool = False
    """Whether it is for the main process of the job alone: in Slurm, for the batch script."""


class CheckpointCommand(Struct, frozen=True):
    """Run this command where the job runs."""

    command: tuple[str, ...]
    """The program and its arguments; no shell reads them."""


Checkpoint = CheckpointSignal | CheckpointCommand


def parse_checkpoint(text: str) -> Checkpoint | None:
    """Parse the field `checkpoint` of a job; None if it is empty.

    A single word in capitals that starts with SIG or names a signal is a signal, with `B:` before
    it for the main process alone. A word that starts with SIG or `B:` must name one. Anything else
    is a command, split into words as a shell would.
    Raises ValueError with what is wrong and the fix.
    """
    if not text:  # nearly all jobs: splitting takes longer than the rest of their check
        return None
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{text!r} has {str(error).lower()}; close the quotation") from None
    if not words:
        return None
    word = words[0].removeprefix(BATCH)
    name = word.removeprefix(PREFIX)
    if len(words) == 1 and name in SIGNALS:
        return CheckpointSignal(PREFIX + name, words[0].startswith(BATCH))
    if len(words) == 1 and (word.startswith(PREFIX) or word != words[0] or name in UNHANDLED):
        names = ", ".join(SIGNALS)
        raise ValueError(f"{text!r} is not a signal that a job can handle; use one of {names}")
    return CheckpointCommand(tuple(words))
