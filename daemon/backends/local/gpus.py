"""Which GPUs this machine has."""

from __future__ import annotations

import subprocess
from pathlib import Path

PATIENCE = 20.0
"""Timeout of nvidia-smi in seconds: it takes several if no driver stays loaded."""


def count_gpus(devices: Path = Path("/dev")) -> int:
    """Return the number of GPUs of the driver, or of device files if the driver cannot be asked."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"],  # noqa: S607 - it is wherever the driver put it
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return sum(path.name[6:].isdigit() for path in devices.glob("nvidia[0-9]*"))
    return sum(line.startswith("GPU ") for line in listed.splitlines())
