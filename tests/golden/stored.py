"""Read, write and compare the stored sums."""

import json
from pathlib import Path

SUMS = Path(__file__).with_name("sums.json")


def stored_sums() -> dict[str, dict[str, str]]:
    """Return the stored sums of each case's files; empty if none are stored."""
    return json.loads(SUMS.read_bytes()) if SUMS.exists() else {}


def differences(case: str, stored: dict[str, str], found: dict[str, str]) -> list[str]:
    """Yield a line for each file of a case that differs from its stored sum."""
    lines = []
    for name in sorted(stored.keys() | found.keys()):
        if name not in found:
            lines.append(f"{case}: {name} is missing now")
        elif name not in stored:
            lines.append(f"{case}: {name} has no stored sum")
        elif stored[name] != found[name]:
            lines.append(f"{case}: {name} differs from the stored output")
    return lines
