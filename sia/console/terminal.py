"""Text that is safe to show on a terminal."""


def printable(text: str) -> str:
    """Text for a terminal: what would steer it, as names in a log may, is spelled out."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()
