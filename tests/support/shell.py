"""Run the command line as a user does."""

import hashlib
import os
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, TextIOWrapper
from pathlib import Path
from time import perf_counter
from typing import NamedTuple
from unittest.mock import patch

from sia.__main__ import main


class Done(NamedTuple):
    """Exit code and output of a command."""

    returncode: int
    stdout: str
    stderr: str


def sia(*arguments, hash_seed=None):
    """Run a command in this process, because a new process takes half a second to import SIA.

    With a hash seed the command gets its own process, as Python reads the seed at its start.
    """
    if hash_seed is not None:
        return sia_process(*arguments, hash_seed=hash_seed)
    if "oracle.cli.oracle" in sys.modules:  # --time-limit counts from the start of the process
        sys.modules["oracle.cli.oracle"].BEGAN = perf_counter()
    out, err = (TextIOWrapper(BytesIO(), "utf-8", "surrogateescape") for _ in range(2))
    kept = signal.getsignal(signal.SIGTERM)
    code = None
    try:
        with (
            patch.object(sys, "argv", ["sia", *map(str, arguments)]),
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            main()
    except SystemExit as ended:
        code = ended.code
    finally:
        signal.signal(signal.SIGTERM, kept)
    return Done(code, text_of(out), text_of(err))


def text_of(written):
    written.flush()
    return written.buffer.getvalue().decode("utf-8", "surrogateescape").replace("\r\n", "\n")


def sia_process(*arguments, hash_seed="0", stdout=subprocess.PIPE):
    """Run a command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "sia", *map(str, arguments)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        check=False,
    )


def digests(folder: Path):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
