"""The command line in a process of its own, and what it leaves."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path


def sia(*arguments, hash_seed="0"):
    """Run the command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "sia", *map(str, arguments)],
        capture_output=True,
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
