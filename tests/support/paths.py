"""Paths of the project's folders, for tests in any folder below tests/."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TESTS = ROOT / "tests"
SUPPORT = TESTS / "support"
