"""The picture of the README shows the demo as it is."""

import sys

from tests.support.paths import ROOT


def test_the_picture_of_the_readme_is_of_the_demo_as_it_is(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    overview = __import__("overview")
    try:
        assert overview.DIGEST.read_text().strip() == overview.digest(), (
            "the demo has changed; run make docs with Chromium, and commit docs/figures"
        )
    finally:
        sys.modules.pop("overview")
