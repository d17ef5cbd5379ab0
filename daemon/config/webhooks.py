"""`[[webhook]]` of `sia.toml`: receivers of events, and the checks of their settings."""

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
"""Upper bound of `webhook.timeout`, in seconds: a slow receiver should respond before it works."""

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
    """One receiver of events. Times are seconds."""

    name: str
    url: str
    secret_file: Path
    events: frozenset[str] = frozenset()
    """Kinds of events to deliver; empty: all."""
    pools: frozenset[str] = frozenset()
    """Pools whose events are delivered; empty: all events, including those without a pool."""
    ca_file: Path | None = None
    """PEM file of authorities to trust instead of the system's."""
    batch: int = BATCH
    """Maximum number of events in a delivery."""
    timeout: float = ANSWER_WITHIN
    refusals: int = REFUSALS
    """Number of 4xx responses after which a delivery is given up."""
    give_up: float = GIVE_UP
    """Seconds for which a delivery with other failures is retried."""

    def __repr__(self) -> str:
        """Return the name and the origin; other parts of the URL may be secret."""
        return f"WebhookConfig({self.name!r}, {self.origin!r})"

    @property
    def origin(self) -> str:
        """Return scheme, host and port: the part of the URL that is not secret."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def read_webhooks(
    values: Mapping[str, Any], base: Path, problems: list[ConfigProblem]
) -> tuple[WebhookConfig, ...]:
    """Return the valid `[[webhook]]` tables; file paths are relative to `base`."""
    rows = values.get("webhook", [])
    if not isinstance(rows, list):
        problems.append(
            ConfigProblem(("webhook",), "is not an array of tables", "write [[webhook]]")
        )
        return ()
    if len(rows) > MAX_HOOKS:
        mend = f"use at most {MAX_HOOKS}"
        problems.append(ConfigProblem(("webhook",), f"has {len(rows)} tables", mend))
    found = []
    for i, row in enumerate(rows[:MAX_HOOKS]):
        section = read(row, _Hook, ("webhook", i), problems)
        if section is not None:
            found.append(_whole(section, i, base, problems))
    return tuple(found)


def _whole(section: _Hook, i: int, base: Path, problems: list[ConfigProblem]) -> WebhookConfig:
    times = {}
    for key in ("timeout", "give_up"):
        value = getattr(section, key)
        try:
            times[key] = parse_seconds(value if isinstance(value, str) else f"{value:f}s")
        except ValueError as error:
            what, _, mend = str(error).rpartition("; ")
            problems.append(ConfigProblem(("webhook", i, key), what, mend))
            times[key] = 1.0
    return WebhookConfig(
        section.name, section.url, base / section.secret_file, frozenset(section.events),
        frozenset(section.pools), base / section.ca_file if section.ca_file else None,
        section.batch, times["timeout"], section.refusals, times["give_up"],
    )  # fmt: skip


def webhook_problems(webhooks: tuple[WebhookConfig, ...], pools: frozenset[str]) -> Iterator[str]:
    """Yield one line for each problem, including secret files that cannot be read."""
    for hook in webhooks:
        where = f"webhook {hook.name}"
        yield from (f"{where}: {problem}" for problem in _url_problems(hook.url))
        unknown = sorted(hook.events - KINDS)
        if unknown:
            there = ", ".join(sorted(KINDS))
            yield f"{where}: events: unknown event {unknown[0]!r}; use {there}"
        if hook.pools - pools:
            yield f"{where}: pools: unknown pool {min(hook.pools - pools)!r}; name configured pools"
        if not 0 < hook.timeout <= LONGEST_TIMEOUT:
            yield f"{where}: timeout: is {hook.timeout:g} s; use at most {LONGEST_TIMEOUT:g}s"
        if hook.give_up <= 0:
            yield f"{where}: give_up: is {hook.give_up:g} s; use a time above 0, such as 1d"
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
    """Read the secrets of a file, one per line.

    Raises UserError if the file cannot be read, other users can read it, or a secret is invalid.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_SECRET_FILE + 1)
        mode = path.stat().st_mode
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; write the secret to this file") from None
    if mode & 0o077:
        raise UserError(f"{path}: other users can read the secret; run chmod 600 {path}")
    secrets = [line.strip() for line in text.splitlines() if line.strip()]
    if not 1 <= len(secrets) <= MOST_SECRETS or len(text) > MAX_SECRET_FILE:
        raise UserError(
            f"{path}: not a file of secrets; it needs 1 to {MOST_SECRETS} secrets, one per line"
        )
    if min(map(len, secrets)) < LEAST_SECRET:
        raise UserError(f"{path}: the secret is too short; use at least {LEAST_SECRET} characters")
    return tuple(secrets)


def _url_problems(url: str) -> Iterator[str]:
    """Yield the problems of a URL, without quoting the URL, which may be secret."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        yield "url: is not a URL; use a URL such as https://host.example/path"
        return
    if parts.scheme not in ("http", "https") or not host or not url.isprintable() or " " in url:
        yield "url: is not a URL; use a URL such as https://host.example/path"
    elif parts.username is not None or parts.password is not None:
        yield "url: contains a user or password; remove them, the secret authenticates requests"
    elif parts.fragment:
        yield "url: contains a fragment (#), which is never sent; remove the fragment"
    elif parts.scheme == "http" and not _loopback(parts):
        yield "url: http:// to another machine is not encrypted; use https://"


def _loopback(parts: SplitResult) -> bool:
    host = parts.hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
