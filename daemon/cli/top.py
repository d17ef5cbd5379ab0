"""`sia top`: pools, queue and newest loans on a terminal, with keys for what operators do most."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from daemon.cli.answers.estimates import estimate_lines
from daemon.cli.client import Client, DeniedError, UnreachableError, at
from daemon.cli.common import INTERRUPTED, asks, moment, say
from sia.console.terminal import printable
from sia.wording import NONE, counted, duration

EVERY = 1.0
"""Seconds between two polls of the daemon: three requests of a few milliseconds each."""

BEAT = 0.1
"""Maximum seconds to wait for a key; after that the frame follows a changed size of the
terminal."""

ROWS = 50
"""Maximum number of jobs, and of nodes, requested: as many as a tall terminal shows."""

PLAIN_ROWS = 10
"""Maximum number of jobs and of loans in a plain frame."""

LEAST = 3
"""Minimum number of rows of each list, on the smallest terminal."""

EXPLAINED = 12
"""Maximum number of lines of an explanation."""

SECTIONS = ("queue", "nodes")

HELP = "↑↓ select   tab queue/nodes   w why   e eta   h hold   d drain/resume   q quit"

KEYS = {
    b"\x1b[A": "up", b"\x1bOA": "up", b"k": "up",
    b"\x1b[B": "down", b"\x1bOB": "down", b"j": "down",
    b"\t": "tab", b"w": "why", b"e": "eta", b"h": "hold", b"d": "drain", b"q": "quit",
}  # fmt: skip


class TopFrame(NamedTuple):
    """The daemon's answers at one time."""

    pools: list[dict[str, Any]]
    queue: dict[str, Any]
    loans: list[dict[str, Any]]
    nodes: list[dict[str, Any]]

    @property
    def time(self) -> float:
        """The daemon's time."""
        return float(self.queue["time"])


def look(client: Client, rows: int = ROWS) -> TopFrame:
    """Ask the daemon for all values of a frame; the newest loans come first."""
    loans = client.get("/v1/loans")["loans"]
    loans.sort(key=lambda loan: (-loan["since"], loan["job"], loan["donor"]))
    return TopFrame(
        client.get("/v1/pools")["pools"],
        client.get("/v1/queue", limit=rows),
        loans,
        client.get("/v1/nodes")["nodes"],
    )


@click.command()
@click.option("--once", is_flag=True, help="Print one plain frame and exit, as without a terminal.")
@asks
def top(client: Client, once: bool, as_json: bool) -> int:
    """Watch pools, the queue and the newest loans.

    Keys explain, estimate and hold the selected job, and drain the selected node.
    """
    if as_json:
        seen = look(client)
        say({**seen._asdict(), "queue": seen.queue["jobs"], "waiting": seen.queue["count"],
             "time": seen.time})  # fmt: skip
        return 0
    console = Console(highlight=False, soft_wrap=False)
    if once or not (console.is_terminal and sys.stdin.isatty()):
        plain = Console(highlight=False, no_color=True, width=console.width)
        seen = look(client, PLAIN_ROWS)
        plain.print(Group(*_frame(seen, Screen(), PLAIN_ROWS, len(seen.pools))))
        return 0
    return _watch(client, console)


class Screen:
    """The state of the screen: what the user has selected.

    Attributes:
        section: The list in which up and down move: the queue, or the nodes.
        chosen: ID of the selected job, or name of the selected node.
        explained: Lines of the newest answer to a key.
    """

    def __init__(self) -> None:
        """Start in the queue, with nothing selected."""
        self.section = SECTIONS[0]
        self.chosen = ""
        self.explained: list[str] = []

    def names(self, seen: TopFrame) -> list[str]:
        """Return the names in the current section, in order."""
        if self.section == "nodes":
            return [node["name"] for node in seen.nodes]
        return [each["job"]["id"] for each in seen.queue["jobs"]]

    def move(self, seen: TopFrame, by: int) -> None:
        """Select the next or the previous row; the first one if none is selected."""
        names = self.names(seen)
        if not names:
            self.chosen = ""
            return
        place = names.index(self.chosen) + by if self.chosen in names else 0
        self.chosen = names[min(max(place, 0), len(names) - 1)]

    def turn(self) -> None:
        """Select the other section."""
        self.section = SECTIONS[(SECTIONS.index(self.section) + 1) % len(SECTIONS)]
        self.chosen, self.explained = "", []


def _watch(client: Client, console: Console) -> int:
    """Show frames until q or Ctrl-C."""
    seen, screen, trouble = look(client), Screen(), ""
    with _keys() as key, Live(console=console, screen=True, auto_refresh=False) as live:
        try:
            due = time.monotonic() + EVERY
            while True:
                size = console.size
                live.update(_fit(seen, screen, console, trouble), refresh=True)
                pressed = ""
                while not pressed and console.size == size and time.monotonic() < due:
                    pressed = key()
                if pressed == "quit":
                    return 0
                try:
                    if pressed:
                        press(client, seen, screen, pressed)
                    if pressed in ("hold", "drain") or time.monotonic() >= due:
                        due = time.monotonic() + EVERY
                        seen, trouble = look(client), ""
                except (DeniedError, UnreachableError) as error:
                    trouble = str(error)
        except KeyboardInterrupt:
            return INTERRUPTED


def press(client: Client, seen: TopFrame, screen: Screen, key: str) -> None:
    """Execute a key, and store the answer in the screen. Errors of the daemon are answers."""
    if key in ("up", "down"):
        screen.move(seen, 1 if key == "down" else -1)
    elif key == "tab":
        screen.turn()
        screen.move(seen, 0)
    else:
        section, act = ACTIONS[key]
        if screen.section != section or not screen.chosen:
            screen.explained = [f"{key}: select a row of the {section} first (tab, ↑↓)"]
            return
        try:
            screen.explained = act(client, seen, screen.chosen)
        except DeniedError as error:
            screen.explained = [str(error)]


def _why(client: Client, _seen: TopFrame, job: str) -> list[str]:
    return list(client.get(f"/v1/jobs/{at(job)}/why")["words"])


def _eta(client: Client, _seen: TopFrame, job: str) -> list[str]:
    return [*estimate_lines(client.get(f"/v1/jobs/{at(job)}/eta"))]


def _hold(client: Client, _seen: TopFrame, job: str) -> list[str]:
    client.ask("POST", f"/v1/jobs/{at(job)}/hold")
    return [f"{job} is held; release it with: sia release {job}"]


def _drain(client: Client, seen: TopFrame, name: str) -> list[str]:
    """Drain a node, or resume one that an operator has drained."""
    out: dict[str, str] = next((node["out"] for node in seen.nodes if node["name"] == name), {})
    if "operator" in out:
        client.ask("POST", f"/v1/nodes/{at(name)}/resume")
        return [f"{name} takes jobs again"]
    client.ask("POST", f"/v1/nodes/{at(name)}/drain", {"why": "by sia top"})
    return [f"{name} takes no new jobs; running jobs continue; press d to resume"]


ACTIONS: dict[str, tuple[str, Callable[[Client, TopFrame, str], list[str]]]] = {
    "why": ("queue", _why),
    "eta": ("queue", _eta),
    "hold": ("queue", _hold),
    "drain": ("nodes", _drain),
}
"""For each key: the section in which it works, and its action."""


@contextmanager
def _keys() -> Iterator[Callable[[], str]]:
    """Read single keys from the terminal; yield a function that waits `BEAT` seconds for one."""
    import termios  # noqa: PLC0415  only Unix has terminals like this
    import tty  # noqa: PLC0415  the same

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)

    typed = b""

    def key() -> str:
        nonlocal typed
        if not typed:
            if not select.select([terminal], [], [], BEAT)[0]:
                return ""
            typed = os.read(terminal, 64)
            if not typed:
                return "quit"  # the terminal has been closed
        code = next((code for code in KEYS if typed.startswith(code)), typed[:1])
        typed = typed[len(code) :]
        return KEYS.get(code, "")

    try:
        yield key
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _fit(seen: TopFrame, screen: Screen, console: Console, trouble: str) -> Group:
    """Return a frame that fits the terminal."""
    explained = [*screen.explained[:EXPLAINED]]
    fixed = 1 + 3 * 3 + bool(explained) + len(explained) + 1  # headings, and the last line
    room = max(3 * LEAST, console.height - fixed)
    pools = max(LEAST, min(len(seen.pools), room // 3))
    rows = max(LEAST, (room - pools) // 2)
    parts = _frame(seen, screen, rows, pools)
    if explained:
        parts += [Text(), *(Text(printable(line), no_wrap=True) for line in explained)]
    last = Text(printable(trouble), style="bold red") if trouble else Text(HELP, style="dim")
    last.no_wrap = True
    return Group(*parts, last)


def _frame(seen: TopFrame, screen: Screen, rows: int, pools: int) -> list[Text | Table]:
    """Return the parts of a frame with at most `rows` rows of jobs, and `pools` of pools."""
    used = sum(pool["dedicated"] + pool["borrowed"] for pool in seen.pools)
    quota = sum(pool["quota"] for pool in seen.pools)
    lent = sum(pool["lent"] for pool in seen.pools)
    waiting = counted(seen.queue["count"], "job")
    use = f"{used:,} of {quota:,} GPUs in use, {lent:,} lent"
    head = Text(f"{moment(seen.time)}   {use}   {waiting} pending", style="bold", no_wrap=True)
    second = _nodes if screen.section == "nodes" else _queue
    tables = (_pools(seen, pools), second(seen, screen, rows), _loans(seen, rows))
    return [head, *(part for table in tables for part in (Text(), table))]


def _table(columns: Sequence[str], numbers: Sequence[str] = ()) -> Table:
    """Return an empty table with one line per row. A last column of text gets the spare width."""
    wide = columns[-1] not in numbers
    table = Table(box=None, pad_edge=False, expand=wide)
    for i, name in enumerate(columns):
        last = i == len(columns) - 1
        table.add_column(
            Text(name), justify="right" if name in numbers else "left", no_wrap=True,
            overflow="ellipsis", ratio=1 if last and wide else None, header_style="bold cyan",
        )  # fmt: skip
    return table


def _row(table: Table, cells: Sequence[str], *, chosen: bool = False) -> None:
    table.add_row(*(Text(printable(cell)) for cell in cells), style="reverse" if chosen else "")


def _pools(seen: TopFrame, rows: int) -> Table:
    numbers = ("quota", "in quota", "borrowed", "lent", "idle", "pending", "pending GPUs")
    table = _table(("pool", *numbers), numbers)
    for pool in seen.pools[:rows]:
        keys = ("quota", "dedicated", "borrowed", "lent", "idle", "waiting", "waiting_gpus")
        _row(table, [pool["name"], *(f"{pool[key]:,}" for key in keys)])
    return _more(table, len(seen.pools) - rows, "pool")


def _queue(seen: TopFrame, screen: Screen, rows: int) -> Table:
    table = _table(("queue", "pool", "user", "GPUs", "waited", "starts", "why"), ("GPUs",))
    for each in _window(seen.queue["jobs"], screen, rows, lambda each: each["job"]["id"]):
        job, start = each["job"], (each.get("estimate") or {}).get("start", {}).get("p50")
        starts = NONE if start is None else f"in {duration(max(0.0, start - seen.time))}"
        waited = duration(max(0.0, seen.time - job["submitted"]))
        cells = [job["id"], job["pool"], job.get("user", ""), f"{job['gpus']}", waited, starts,
                 each.get("waits", "")]  # fmt: skip
        _row(table, cells, chosen=job["id"] == screen.chosen)
    return _more(table, seen.queue["count"] - rows, "pending job")


def _nodes(seen: TopFrame, screen: Screen, rows: int) -> Table:
    table = _table(("node", "GPUs", "used", "state"), ("GPUs", "used"))
    for node in _window(seen.nodes, screen, rows, lambda node: node["name"]):
        state = "; ".join(f"{who}: {why}" for who, why in node["out"].items()) or "in"
        cells = [node["name"], f"{node['gpus']:,}", f"{node['used']:,}", state]
        _row(table, cells, chosen=node["name"] == screen.chosen)
    return _more(table, len(seen.nodes) - rows, "node")


def _window(
    items: Sequence[dict[str, Any]],
    screen: Screen,
    rows: int,
    name: Callable[[dict[str, Any]], str],
) -> Sequence[dict[str, Any]]:
    """Return the rows to show: the first ones, or those up to the selected one."""
    place = next((i for i, item in enumerate(items) if name(item) == screen.chosen), 0)
    begin = max(0, place - rows + 1)
    return items[begin : begin + rows]


def _loans(seen: TopFrame, rows: int) -> Table:
    table = _table(("newest loan", "GPUs", "lender", "borrower", "for"), ("GPUs",))
    for loan in seen.loans[:rows]:
        since = duration(max(0.0, seen.time - loan["since"]))
        _row(table, [loan["job"], f"{loan['gpus']:,}", loan["donor"], loan["borrower"], since])
    return _more(table, len(seen.loans) - rows, "loan")


def _more(table: Table, left: int, what: str) -> Table:
    """Add a last row with the number of rows that do not fit, or that says that there are none."""
    if left > 0:
        table.caption = f"and {counted(left, f'more {what}')}"
        table.caption_justify = "left"
    elif not table.rows:
        _row(table, [f"no {what}", *[""] * (len(table.columns) - 1)])
    return table
