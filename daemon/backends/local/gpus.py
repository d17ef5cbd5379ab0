"""Which GPUs this machine has."""

from __future__ import annotations

import subprocess
from pathlib import Path

PATIENCE = 20.0
"""Seconds for nvidia-smi: it takes several where no driver stays loaded."""


def count_gpus(devices: Path = Path("/dev")) -> int:
    """How many GPUs the driver lists; those with a device file where it cannot be asked."""
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
