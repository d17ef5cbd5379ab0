"""Blank pictures for tests that check anything else of a report."""

from contextlib import contextmanager
from unittest.mock import patch

from replay.plotting import canvas

DRAWN = canvas._saved
BLANK = b'<svg xmlns="http://www.w3.org/2000/svg" />'


@contextmanager
def blank_pictures():
    """In this process pictures are blank: to draw them takes longer than the runs they show."""
    with patch.object(
        canvas, "_saved", lambda _name, _height, _draw, *forms: [BLANK for _ in forms]
    ):
        yield


@contextmanager
def drawn_pictures():
    """Draw pictures where they are blank otherwise."""
    with patch.object(canvas, "_saved", DRAWN):
        yield
