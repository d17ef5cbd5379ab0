"""Text that is safe to print on a terminal."""


def printable(text: str) -> str:
    """Return text with control characters escaped; names in a log may contain them."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()
