"""The engine's part for nodes: they are drained, maintained, and take jobs again."""

from __future__ import annotations

from daemon.engine.step import StepContext
from daemon.model.book import MaintenanceWindow, NodeRecord
from daemon.model.inputs import CancelMaintenance, Drain, Maintain, NodeDown, NodeUp, Resume
from daemon.model.limits import MAX_MAINTENANCE
from daemon.model.outputs import Accepted, Answer, Refused
from daemon.model.timers import Timer
from sia.events import NodeBack, NodeOut

OVER, BEGIN = "maintenance 1 ends", "maintenance 2 begins"
"""Kinds of timers: of two windows end to end the first is over before the second begins."""

OPERATOR, CONFIG, BACKEND = "operator", "config", "backend"
"""Who takes nodes out, besides maintenance."""


class NodeStates:
    """A node is out as long as anybody has a reason for it."""

    def __init__(self, context: StepContext) -> None:
        """Work at this context."""
        self._context = context
        self._book = context.book

    def drain(self, asked: Drain) -> Answer:
        """Place nothing more on a node. O(its cells)."""
        node = self._book.nodes.get(asked.node)
        if node is None:
            return self._unknown(asked.node)
        if OPERATOR in node.reasons:
            return Accepted(new=False)
        self._take_out(node, OPERATOR, asked.why or "drained")
        return Accepted()

    def resume(self, asked: Resume) -> Answer:
        """Place jobs on a node again, unless it is being maintained. O(its cells).

        Who drained a node that the cells file calls bad gives it back as bad; to resume that one
        is to say that it is well again.
        """
        node = self._book.nodes.get(asked.node)
        if node is None:
            return self._unknown(asked.node)
        if not node.reasons:
            return Accepted(new=False)
        busy = [name for name in node.reasons if name not in (OPERATOR, CONFIG, BACKEND)]
        if busy:
            return Refused(
                409,
                "node is maintained",
                f"node {node.name} is out for {', '.join(busy)}",
                "cancel the maintenance, or wait until it is over",
            )
        if OPERATOR not in node.reasons and BACKEND in node.reasons:
            return Refused(
                409,
                "node is down",
                f"node {node.name} is out by its own cluster: {node.reasons[BACKEND]}",
                "have it take jobs there; it then does here too",
            )
        self._bring_back(node, OPERATOR if OPERATOR in node.reasons else CONFIG)
        return Accepted()

    def down(self, seen: NodeDown) -> Answer:
        """A node is out for the backend. O(its cells)."""
        node = self._book.nodes.get(seen.node)
        if node is None:
            return self._unknown(seen.node)
        if node.reasons.get(BACKEND) == seen.why:
            return Accepted(new=False)
        self._take_out(node, BACKEND, seen.why)
        return Accepted()

    def up(self, seen: NodeUp) -> Answer:
        """A node is not out for the backend any more. O(its cells)."""
        node = self._book.nodes.get(seen.node)
        if node is None:
            return self._unknown(seen.node)
        if BACKEND not in node.reasons:
            return Accepted(new=False)
        self._bring_back(node, BACKEND)
        return Accepted()

    def maintain(self, asked: Maintain) -> Answer:
        """A node will be out for a while. O(log n)."""
        windows = self._book.windows
        wanted = MaintenanceWindow(asked.id, asked.node, asked.start, asked.end, asked.why)
        known = windows.get(asked.id)
        if known is not None:
            same = (known.node, known.start, known.end) == (wanted.node, wanted.start, wanted.end)
            return Accepted(new=False) if same else _taken(asked.id)
        if asked.node not in self._book.nodes:
            return self._unknown(asked.node)
        if not asked.start < asked.end or asked.end <= self._context.now:
            return Refused(
                422,
                "cannot be",
                f"maintenance {asked.id} would end "
                + ("before it begins" if asked.end > self._context.now else "before now"),
                "name a start, and an end after it that is to come",
            )
        if len(windows) >= MAX_MAINTENANCE:
            return Refused(
                409,
                "too many",
                f"there are {MAX_MAINTENANCE} maintenance windows",
                "cancel some that are not needed",
            )
        windows[asked.id] = wanted
        self.set_timers(wanted)
        if wanted.start <= self._context.now:
            self._begin(wanted)
        return Accepted()

    def set_timers(self, window: MaintenanceWindow) -> None:
        """Look at a window again when it begins and ends. O(log n)."""
        if not window.begun:
            self._context.timers.set(Timer(window.start, BEGIN, window.id))
        self._context.timers.set(Timer(window.end, OVER, window.id))

    def cancel(self, asked: CancelMaintenance) -> Answer:
        """A node is not out for that, or no longer. O(its cells)."""
        window = self._book.windows.get(asked.id)
        if window is None:
            return Refused(
                404, "no such maintenance", f"there is no {asked.id!r}", "see: sia maintenance list"
            )
        self._end(window)
        return Accepted()

    def due(self, timer: Timer) -> None:
        """A window begins or ends, if it is still there."""
        window = self._book.windows.get(timer.name)
        if window is None or timer.time != (window.end if timer.kind == OVER else window.start):
            return
        if timer.kind == OVER:
            self._end(window)
        elif not window.begun:
            self._begin(window)

    def _begin(self, window: MaintenanceWindow) -> None:
        begun = MaintenanceWindow(
            window.id, window.node, window.start, window.end, window.why, begun=True
        )
        self._book.windows[window.id] = begun
        node = self._book.nodes.get(window.node)
        if node is not None:  # older snapshots have windows of nodes that are gone
            self._take_out(node, _name(window), window.why or "maintenance")

    def _end(self, window: MaintenanceWindow) -> None:
        del self._book.windows[window.id]
        for kind in (BEGIN, OVER):
            self._context.timers.drop(kind, window.id)
        node = self._book.nodes.get(window.node)
        if node is not None and _name(window) in node.reasons:
            self._bring_back(node, _name(window))

    def _take_out(self, node: NodeRecord, who: str, why: str) -> None:
        first = not node.reasons
        node.reasons[who] = why
        if not first:
            return
        context = self._context
        if context.core.state.places is not None:
            self._turn(node.name)
            context.events.append(NodeOut(context.now, node.name, why))
        elif context.placement is not None:
            context.placement.out(node.name)
            context.changed_nodes[node.name] = None
        context.notify("node_out", node=node.name, why=why)

    def _bring_back(self, node: NodeRecord, who: str) -> None:
        del node.reasons[who]
        if node.reasons:
            return
        context = self._context
        if context.core.state.places is not None:
            self._turn(node.name)
            context.events.append(NodeBack(context.now, node.name))
        elif context.placement is not None:
            context.placement.back(node.name)
            context.changed_nodes[node.name] = None
        context.notify("node_back", node=node.name)

    def _turn(self, node: str) -> None:
        """Have the core hear of what was before: at one instant, nodes come back after they go."""
        for event in self._context.events:
            if isinstance(event, NodeOut | NodeBack) and event.node == node:
                self._context.flush()
                return

    def _unknown(self, node: str) -> Refused:
        names = ", ".join(list(self._book.nodes)[:8]) or "none: declare [[node]] or cells"
        return Refused(404, "no such node", f"there is no node {node!r}", f"there is {names}")


def _name(window: MaintenanceWindow) -> str:
    return f"maintenance {window.id}"


def _taken(window_id: str) -> Refused:
    return Refused(
        409, "id is taken", f"another maintenance has the id {window_id!r}", "take another id"
    )
