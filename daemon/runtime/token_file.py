"""Tokens: the machine's own, in a file that only its owner can read, and those that are issued."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from pathlib import Path

from sia.console.errors import UserError

TOKEN_BYTES = 32
"""Nobody guesses 256 bits."""

LEAST_TOKEN = 16
"""Characters of a token that somebody else wrote into the file: fewer could be guessed."""


def make_token(path: Path) -> str:
    """The token in a file, which is made at the first start, for its owner's eyes alone.

    Raises UserError where the file cannot be read or made, or others can read it.
    """
    folder = path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        mend = "give another daemon.state, or another folder in daemon.token_file"
        raise UserError(f"{folder}: {error.strerror}; {mend}") from None
    try:
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_token(path)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give another daemon.token_file") from None
    with os.fdopen(made, "w", encoding="ascii") as file:
        file.write(secrets.token_urlsafe(TOKEN_BYTES) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return read_token(path)


def read_token(path: Path) -> str:
    """The token in a file. Raises UserError where it cannot be read, is none, or is no secret."""
    try:
        token = path.read_text("ascii").strip()
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is no token"
        raise UserError(f"{path}: {why}; start the daemon first, or set SIA_TOKEN_FILE") from None
    if mode & 0o077:
        raise UserError(f"{path}: others can read the token; chmod 600 {path}")
    return checked_token(token, str(path), "remove it and start the daemon again")


def checked_token(token: str, where: str, mend: str) -> str:
    """A text that can be a token. Raises UserError, which does not say it."""
    if len(token) < LEAST_TOKEN or not (token.isascii() and token.isprintable()) or " " in token:
        raise UserError(f"{where}: holds no token; {mend}")
    return token


def new_token(cluster: str) -> str:
    """A token that nobody has: it says for which cluster it is, and the rest is secret."""
    return f"sia_{cluster}_{secrets.token_urlsafe(TOKEN_BYTES)}"


def digest_of(token: str) -> str:
    """What is kept of a token: nobody finds the token by it."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def cluster_of(token: str) -> str | None:
    """The cluster that an issued token is for; None for any other text."""
    found = re.fullmatch(r"sia_([A-Za-z0-9.-]{1,64})_[A-Za-z0-9_-]{16,}", token)
    return None if found is None else found[1]
