"""The stored sums, and how others differ from them."""

import json
from pathlib import Path

SUMS = Path(__file__).with_name("sums.json")


def stored_sums() -> dict[str, dict[str, str]]:
    """The sums of each case's files; none before they were first written."""
    return json.loads(SUMS.read_bytes()) if SUMS.exists() else {}


def differences(case: str, stored: dict[str, str], found: dict[str, str]) -> list[str]:
    """A line for each file of a case that is not as stored."""
    lines = []
    for name in sorted(stored.keys() | found.keys()):
        if name not in found:
            lines.append(f"{case}: {name} is missing now")
        elif name not in stored:
            lines.append(f"{case}: {name} has no stored sum")
        elif stored[name] != found[name]:
            lines.append(f"{case}: {name} differs from the stored output")
    return lines
