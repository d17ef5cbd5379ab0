"""`daemon.database`: a SQLite file or a PostgreSQL URL, whose secrets no message shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import SplitResult, quote, unquote, urlsplit

from sia.console.errors import UserError
from sia.wording import install_extra

SCHEMES = ("postgresql", "postgres")

NAMED = frozenset(("host", "hostaddr", "dbname", "service"))
"""Parameters of a URL, of which at least one is required: libpq would take the user's name as the
database."""

MAX_PORT = 2**16 - 1
"""The highest port of TCP."""

HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:[0-9]{1,5})?")

NEEDS_EXTRA = f"PostgreSQL needs psycopg, which is not installed; {install_extra('postgres')}"


class DatabaseUrl:
    """A PostgreSQL URL as libpq reads it. `str()` omits the password and the parameters."""

    def __init__(self, url: str) -> None:
        """Keep the URL as the configuration gives it."""
        self._url = url

    def reveal(self) -> str:
        """Return the URL with its secrets. Only libpq may get it."""
        return self._url

    def secrets(self) -> list[str]:
        """Return the passwords, as written and percent-decoded; no message may contain them."""
        try:
            parts = urlsplit(self._url)
            found = [parts.password or ""]
        except ValueError:
            return [self._url]
        pairs = (pair.partition("=") for pair in parts.query.split("&"))
        found += [value for key, _, value in pairs if "password" in key]
        return [each for text in found if text for each in (text, unquote(text))]

    @property
    def well_formed(self) -> bool:
        """Whether the URL has only one reading and its ports are numbers.

        If a password contains an unescaped `/`, `#`, `?` or `@`, libpq and `urlsplit` disagree
        about where the password ends.
        """
        try:
            parts = urlsplit(self._url)
        except ValueError:
            return False
        if parts.fragment or parts.netloc.count("@") > 1 or "@" in parts.path + parts.query:
            return False
        hosts = parts.netloc.rpartition("@")[2]
        found = [HOST.fullmatch(host) for host in hosts.split(",")]
        return all(each and 0 < int((each[2] or ":1")[1:]) <= MAX_PORT for each in found)

    def __str__(self) -> str:
        if not self.well_formed:
            return "postgresql://…"  # any part may belong to the password
        parts = urlsplit(self._url)
        return f"postgresql://{_place(parts)}{quote(unquote(parts.path))}"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DatabaseUrl) and other._url == self._url

    def __hash__(self) -> int:
        return hash(self._url)


def _place(parts: SplitResult) -> str:
    """Return the user, hosts and ports of the URL."""
    at = "@" if "@" in parts.netloc else ""
    user = parts.username or ""
    hosts = parts.netloc.rpartition("@")[2]
    return f"{user}{at}{hosts}"


def database_of(text: str, state: Path) -> Path | DatabaseUrl:
    """Return the database that `daemon.database` names; a path is relative to `state`."""
    return DatabaseUrl(text) if _scheme(text) in SCHEMES else state / text


def problems_of(database: Path | DatabaseUrl) -> Iterator[str]:
    """Check the syntax of the URL or path, without connecting to the database."""
    if isinstance(database, Path):
        if "://" in str(database) or ":/" in str(database):
            yield "daemon.database: neither a file nor a URL; use postgresql://USER@HOST:PORT/NAME"
        return
    try:
        from psycopg import ProgrammingError, conninfo  # noqa: PLC0415  an optional dependency
    except ImportError:
        yield f"daemon.database: {NEEDS_EXTRA}"
        return
    try:
        values = conninfo.conninfo_to_dict(database.reveal())
        fine = database.well_formed and not NAMED.isdisjoint(values)
    except (ProgrammingError, UnicodeError):  # the error text may contain the password
        fine = False
    if not fine:
        yield (
            f"daemon.database: {database} is not a URL that libpq can read; use "
            "postgresql://USER@HOST:PORT/NAME, with %XX for special characters in the password"
        )


def require_psycopg() -> None:
    """Raise UserError if psycopg is not installed."""
    try:
        import psycopg  # noqa: F401, PLC0415  an optional dependency
    except ImportError:
        raise UserError(NEEDS_EXTRA) from None


def _scheme(text: str) -> str:
    return text.partition("://")[0].lower() if "://" in text else ""
