"""Where the journal is: a file, or a PostgreSQL of which nothing secret is ever shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import SplitResult, quote, unquote, urlsplit

from sia.console.errors import UserError

SCHEMES = ("postgresql", "postgres")

HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:[0-9]{1,5})?")

NEEDS_EXTRA = (
    "PostgreSQL needs psycopg, which is not installed; pip install 'sia-scheduler[postgres]'"
)


class DatabaseUrl:
    """A PostgreSQL, by a URL as libpq has it. As text it has neither password nor parameters."""

    def __init__(self, url: str) -> None:
        """As it stands in the configuration."""
        self._url = url

    def reveal(self) -> str:
        """All of it, for libpq alone."""
        return self._url

    def secrets(self) -> list[str]:
        """What must be in no message, as it is written and as it is meant."""
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
        """Whether it can be taken apart in one way only, and ports are numbers.

        A password with a `/`, `#`, `?` or `@` that is written as it is ends somewhere else for
        libpq than for us.
        """
        try:
            parts = urlsplit(self._url)
        except ValueError:
            return False
        if parts.fragment or parts.netloc.count("@") > 1 or "@" in parts.path + parts.query:
            return False
        hosts = parts.netloc.rpartition("@")[2]
        return all(HOST.fullmatch(host) for host in hosts.split(","))

    def __str__(self) -> str:
        if not self.well_formed:
            return "postgresql://…"  # what of it is the password, nobody knows
        parts = urlsplit(self._url)
        return f"postgresql://{_place(parts)}{quote(unquote(parts.path))}"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DatabaseUrl) and other._url == self._url

    def __hash__(self) -> int:
        return hash(self._url)


def _place(parts: SplitResult) -> str:
    """User, host and port."""
    at = "@" if "@" in parts.netloc else ""
    user = parts.username or ""
    hosts = parts.netloc.rpartition("@")[2]
    return f"{user}{at}{hosts}"


def database_of(text: str, state: Path) -> Path | DatabaseUrl:
    """What `daemon.database` says."""
    return DatabaseUrl(text) if _scheme(text) in SCHEMES else state / text


def problems_of(database: Path | DatabaseUrl) -> Iterator[str]:
    """What is wrong with how it is written; whether it is there, nobody asks."""
    if isinstance(database, Path):
        if "://" in str(database) or ":/" in str(database):
            yield "daemon.database: is neither file nor URL; write postgresql://USER@HOST:PORT/NAME"
        return
    try:
        from psycopg import ProgrammingError, conninfo  # noqa: PLC0415  not everybody has it
    except ImportError:
        yield f"daemon.database: {NEEDS_EXTRA}"
        return
    try:
        conninfo.conninfo_to_dict(database.reveal())
        fine = database.well_formed
    except (ProgrammingError, UnicodeError):  # what it says may show the password
        fine = False
    if not fine:
        yield (
            f"daemon.database: {database} is no URL that libpq reads; write "
            "postgresql://USER@HOST:PORT/NAME, with %XX for what is special in a password"
        )


def require_psycopg() -> None:
    """Raise UserError where it is not installed."""
    try:
        import psycopg  # noqa: F401, PLC0415  not everybody has it
    except ImportError:
        raise UserError(NEEDS_EXTRA) from None


def _scheme(text: str) -> str:
    return text.partition("://")[0].lower() if "://" in text else ""
