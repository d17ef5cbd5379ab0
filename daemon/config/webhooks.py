"""`[[webhook]]`: who is told what, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from msgspec import Meta, Struct

from daemon.config.validation import ConfigProblem, read
from daemon.config.webhook_kinds import KINDS
from daemon.config.webhook_limits import (
    ANSWER_WITHIN,
    BATCH,
    GIVE_UP,
    LEAST_SECRET,
    MAX_BATCH,
    MAX_HOOKS,
    MAX_SECRET_FILE,
    MOST_SECRETS,
    REFUSALS,
)
from daemon.runtime.trust import trusting
from sia.console.errors import UserError
from sia.wording import parse_seconds

ConfigTime = float | str

LONGEST_TIMEOUT = 60.0
"""Seconds for an answer: a receiver that needs longer should answer first and work then."""

ConfigText = Annotated[str, Meta(min_length=1, max_length=2000)]


class _Hook(Struct, frozen=True):
    name: Annotated[str, Meta(pattern="^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$")]
    url: ConfigText
    secret_file: ConfigText
    events: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    ca_file: str = ""
    batch: Annotated[int, Meta(ge=1, le=MAX_BATCH)] = BATCH
    timeout: ConfigTime = ANSWER_WITHIN
    refusals: Annotated[int, Meta(ge=1, le=1000)] = REFUSALS
    give_up: ConfigTime = GIVE_UP


class WebhookConfig(NamedTuple):
    """A receiver. Times are seconds."""

    name: str
    url: str
    secret_file: Path
    events: frozenset[str] = frozenset()
    """Kinds; all where none is named."""
    pools: frozenset[str] = frozenset()
    """Only what is of one of these; all, and what is of none, where none is named."""
    ca_file: Path | None = None
    """Who vouches for its certificate, instead of those that the system trusts."""
    batch: int = BATCH
    """Events of a delivery at most."""
    timeout: float = ANSWER_WITHIN
    refusals: int = REFUSALS
    """Answers of 4xx until a delivery is given up."""
    give_up: float = GIVE_UP
    """How long a delivery that fails otherwise is tried."""

    def __repr__(self) -> str:
        """Without the URL, which may hold a secret."""
        return f"WebhookConfig({self.name!r}, {self.origin!r})"

    @property
    def origin(self) -> str:
        """As much of the URL as is no secret."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def read_webhooks(
    values: Mapping[str, Any], base: Path, problems: list[ConfigProblem]
) -> tuple[WebhookConfig, ...]:
    """Those of `[[webhook]]` that are well formed; files begin at the folder `base`."""
    rows = values.get("webhook", [])
    if not isinstance(rows, list):
        problems.append(ConfigProblem(("webhook",), "is no array of tables", "write [[webhook]]"))
        return ()
    if len(rows) > MAX_HOOKS:
        mend = f"have {MAX_HOOKS} at most"
        problems.append(ConfigProblem(("webhook",), f"stands {len(rows)} times", mend))
    found = []
    for i, row in enumerate(rows[:MAX_HOOKS]):
        said = read(row, _Hook, ("webhook", i), problems)
        if said is not None:
            found.append(_whole(said, i, base, problems))
    return tuple(found)


def _whole(said: _Hook, i: int, base: Path, problems: list[ConfigProblem]) -> WebhookConfig:
    times = {}
    for key in ("timeout", "give_up"):
        value = getattr(said, key)
        try:
            times[key] = parse_seconds(value if isinstance(value, str) else f"{value:f}s")
        except ValueError as error:
            what, _, mend = str(error).rpartition("; ")
            problems.append(ConfigProblem(("webhook", i, key), what, mend))
            times[key] = 1.0
    return WebhookConfig(
        said.name, said.url, base / said.secret_file, frozenset(said.events),
        frozenset(said.pools), base / said.ca_file if said.ca_file else None,
        said.batch, times["timeout"], said.refusals, times["give_up"],
    )  # fmt: skip


def webhook_problems(webhooks: tuple[WebhookConfig, ...], pools: frozenset[str]) -> Iterator[str]:
    """A line for each thing that is wrong with them, secrets that cannot be read too."""
    for hook in webhooks:
        where = f"webhook {hook.name}"
        yield from (f"{where}: {problem}" for problem in _url_problems(hook.url))
        unknown = sorted(hook.events - KINDS)
        if unknown:
            there = ", ".join(sorted(KINDS))
            yield f"{where}: events: there is no {unknown[0]!r}; there is {there}"
        if hook.pools - pools:
            yield f"{where}: pools: there is no {min(hook.pools - pools)!r}; name pools that are"
        if not 0 < hook.timeout <= LONGEST_TIMEOUT:
            yield f"{where}: timeout: is {hook.timeout:g} s; write up to {LONGEST_TIMEOUT:g}s"
        if hook.give_up <= 0:
            yield f"{where}: give_up: is {hook.give_up:g} s; write a time above 0, like 1d"
        try:
            read_secrets(hook.secret_file)
        except UserError as error:
            yield f"{where}: secret_file: {error.format_message()}"
        if hook.ca_file is not None:
            try:
                trusting(hook.ca_file)
            except UserError as error:
                yield f"{where}: ca_file: {error.format_message()}"


def read_secrets(path: Path) -> tuple[bytes, ...]:
    """The secrets of a file, one a line.

    Raises UserError where it cannot be read, others can read it, or it holds none.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_SECRET_FILE + 1)
        mode = path.stat().st_mode
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; write the secret into it") from None
    if mode & 0o077:
        raise UserError(f"{path}: others can read the secret; chmod 600 {path}")
    secrets = [line.strip() for line in text.splitlines() if line.strip()]
    if not 1 <= len(secrets) <= MOST_SECRETS or len(text) > MAX_SECRET_FILE:
        raise UserError(f"{path}: holds no secret; write 1 to {MOST_SECRETS} of them, one a line")
    if min(map(len, secrets)) < LEAST_SECRET:
        raise UserError(f"{path}: the secret is short; write {LEAST_SECRET} characters or more")
    return tuple(secrets)


def _url_problems(url: str) -> Iterator[str]:
    """What is wrong with it, without repeating it: it may hold a secret."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        yield "url: is no URL; write one like https://host.example/path"
        return
    if parts.scheme not in ("http", "https") or not host or not url.isprintable() or " " in url:
        yield "url: is no URL; write one like https://host.example/path"
    elif parts.username is not None or parts.password is not None:
        yield "url: has a user or password in it; leave them out, the secret signs"
    elif parts.fragment:
        yield "url: has a # in it, which is never sent; leave it out"
    elif parts.scheme == "http" and not _loopback(parts):
        yield "url: is http:// to another machine, which anybody can read; write https://"


def _loopback(parts: SplitResult) -> bool:
    host = parts.hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
