"""Tokens: the local one, in a file that only its owner can read, and issued ones."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import tempfile
from pathlib import Path

from sia.console.errors import UserError

TOKEN_BYTES = 32
"""Random bytes of a token: 256 bits cannot be guessed."""

LEAST_TOKEN = 16
"""The least length of a token that an operator wrote into the file: shorter ones can be guessed."""


def make_token(path: Path) -> str:
    """Return the token in a file; create the file, mode 0600, at the first start.

    Raises UserError if the file cannot be read or created, or if others can read it.
    """
    folder = path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        mend = "change daemon.state, or the folder of daemon.token_file"
        raise UserError(f"{folder}: {error.strerror}; {mend}") from None
    if path.exists():
        return read_token(path)
    try:
        _create(path)
    except FileExistsError:
        pass  # another daemon created it a moment ago
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; change daemon.token_file") from None
    return read_token(path)


def _create(path: Path) -> None:
    """Create the file with a new token. A reader sees all of it or no file at all.

    Raises FileExistsError if the file exists, OSError if it cannot be created.
    """
    made, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(made, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(TOKEN_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(name, path)  # fails if the file exists
    finally:
        Path(name).unlink()


def read_token(path: Path, mend: str = "start the daemon first, or set SIA_TOKEN_FILE") -> str:
    """Return the token in a file. Raises UserError if it is unreadable, invalid or not private.

    `mend` says what to do if there is no such file.
    """
    try:
        token = path.read_text("ascii").strip()
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "contains no token"
        raise UserError(f"{path}: {why}; {mend}") from None
    if mode & 0o077:
        raise UserError(f"{path}: other users can read the token; run chmod 600 {path}")
    return checked_token(token, str(path), "remove it and start the daemon again")


def checked_token(token: str, where: str, mend: str) -> str:
    """Return `token` if it has the form of a token. Raises UserError, without showing it."""
    if len(token) < LEAST_TOKEN or not (token.isascii() and token.isprintable()) or " " in token:
        raise UserError(f"{where}: contains no token; {mend}")
    return token


def new_token(cluster: str) -> str:
    """Return a new random token, prefixed with its cluster."""
    return f"sia_{cluster}_{secrets.token_urlsafe(TOKEN_BYTES)}"


def digest_of(token: str) -> str:
    """Return the SHA-256 digest under which a token is stored."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def cluster_of(token: str) -> str | None:
    """Return the cluster of an issued token, or None for any other text."""
    found = re.fullmatch(r"sia_([A-Za-z0-9.-]{1,64})_[A-Za-z0-9_-]{16,}", token)
    return None if found is None else found[1]
