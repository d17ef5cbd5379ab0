"""Nodes: drain, undrain, maintenance, and what the backend reports."""

from __future__ import annotations

from daemon.engine.step import StepContext
from daemon.model.book import MaintenanceWindow, NodeRecord
from daemon.model.inputs import CancelMaintenance, Drain, Maintain, NodeDown, NodeUp, Resume
from daemon.model.limits import MAX_MAINTENANCE
from daemon.model.outputs import Accepted, Answer, Refused
from daemon.model.timers import Timer
from sia.events import NodeBack, NodeOut

OVER, BEGIN = "maintenance 1 ends", "maintenance 2 begins"
"""Kinds of timers. They sort so that the end of a window comes before the begin of another window
at the same time."""

OPERATOR, CONFIG, BACKEND = "operator", "config", "backend"
"""Sources of reasons why a node is out, besides maintenance windows."""


class NodeStates:
    """Tracks the reasons why nodes are out; a node is out while it has one."""

    def __init__(self, context: StepContext) -> None:
        """Work on this context."""
        self._context = context
        self._book = context.book

    def drain(self, asked: Drain) -> Answer:
        """Drain a node: no more jobs start on it. O(its cells)."""
        node = self._book.nodes.get(asked.node)
        if node is None:
            return self._unknown(asked.node)
        if OPERATOR in node.reasons:
            return Accepted(new=False)
        self._take_out(node, OPERATOR, asked.why or "drained")
        return Accepted()

    def resume(self, asked: Resume) -> Answer:
        """Undrain a node, unless it is in maintenance. O(its cells).

        A node that is drained and that the cells file marks as bad needs two calls: the first one
        ends the drain, the second one declares that the node works.
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
                "node is in maintenance",
                f"node {node.name} is out for {', '.join(busy)}",
                "cancel the maintenance, or wait until it ends",
            )
        if OPERATOR not in node.reasons and BACKEND in node.reasons:
            return Refused(
                409,
                "node is down",
                f"the backend reports node {node.name} as out: {node.reasons[BACKEND]}",
                "return the node to service in the backend",
            )
        self._bring_back(node, OPERATOR if OPERATOR in node.reasons else CONFIG)
        return Accepted()

    def down(self, seen: NodeDown) -> Answer:
        """Record that the backend reports a node as out. O(its cells)."""
        node = self._book.nodes.get(seen.node)
        if node is None:
            return self._unknown(seen.node)
        if node.reasons.get(BACKEND) == seen.why:
            return Accepted(new=False)
        self._take_out(node, BACKEND, seen.why)
        return Accepted()

    def up(self, seen: NodeUp) -> Answer:
        """Record that the backend reports a node as in. O(its cells)."""
        node = self._book.nodes.get(seen.node)
        if node is None:
            return self._unknown(seen.node)
        if BACKEND not in node.reasons:
            return Accepted(new=False)
        self._bring_back(node, BACKEND)
        return Accepted()

    def maintain(self, asked: Maintain) -> Answer:
        """Plan a maintenance window. O(log n)."""
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
                "invalid",
                f"maintenance {asked.id} would end "
                + ("before it begins" if asked.end > self._context.now else "in the past"),
                "give an end in the future and after the start",
            )
        if len(windows) >= MAX_MAINTENANCE:
            return Refused(
                409,
                "too many maintenance windows",
                f"there are already {MAX_MAINTENANCE} maintenance windows",
                "cancel windows that are not needed",
            )
        windows[asked.id] = wanted
        self.set_timers(wanted)
        if wanted.start <= self._context.now:
            self._begin(wanted)
        return Accepted()

    def set_timers(self, window: MaintenanceWindow) -> None:
        """Set the timers for the begin and the end of a window. O(log n)."""
        if not window.begun:
            self._context.timers.set(Timer(window.start, BEGIN, window.id))
        self._context.timers.set(Timer(window.end, OVER, window.id))

    def cancel(self, asked: CancelMaintenance) -> Answer:
        """Cancel or end a maintenance window. O(its cells)."""
        window = self._book.windows.get(asked.id)
        if window is None:
            return Refused(
                404,
                "no such maintenance",
                f"there is no maintenance {asked.id!r}",
                "see: sia maintenance list",
            )
        self._end(window)
        return Accepted()

    def due(self, timer: Timer) -> None:
        """Begin or end a maintenance window, unless it was cancelled."""
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
        node = self._book.nodes[window.node]
        self._take_out(node, _name(window), window.why or "maintenance")

    def _end(self, window: MaintenanceWindow) -> None:
        del self._book.windows[window.id]
        for kind in (BEGIN, OVER):
            self._context.timers.drop(kind, window.id)
        node = self._book.nodes[window.node]
        if _name(window) in node.reasons:
            self._bring_back(node, _name(window))

    def _take_out(self, node: NodeRecord, who: str, why: str) -> None:
        first = not node.reasons
        node.reasons[who] = why
        if not first:
            return
        context = self._context
        if context.core.state.places is not None:
            self._separate(node.name)
            context.events.append(NodeOut(context.now, node.name, why))
        elif context.placement is not None:
            context.placement.out(node.name)
            context.changed_nodes[node.name] = None
            if context.core.state.nodes is not None:
                self._separate(node.name)
                waiting = self._waiting(node.name)
                context.events.append(NodeOut(context.now, node.name, why, waiting))
        context.notify("node_out", node=node.name, why=why)

    def _waiting(self, node: str) -> tuple[str, ...]:
        """Return the started jobs that wait for GPUs of a node. O(all that wait for GPUs)."""
        book, table = self._book, self._context.core.state.nodes
        assert table is not None
        waiting = (book.jobs[job_id].core for job_id in book.seatless)
        return tuple(job_id for job_id in waiting if node in table.held(job_id))

    def _bring_back(self, node: NodeRecord, who: str) -> None:
        del node.reasons[who]
        if node.reasons:
            return
        context = self._context
        if context.core.state.places is not None:
            self._separate(node.name)
            context.events.append(NodeBack(context.now, node.name))
        elif context.placement is not None:
            context.placement.back(node.name)
            context.changed_nodes[node.name] = None
            if context.core.state.nodes is not None:
                self._separate(node.name)
                context.events.append(NodeBack(context.now, node.name))
        context.notify("node_back", node=node.name)

    def _separate(self, node: str) -> None:
        """Flush pending events if one of them is about this node.

        The core applies returns of nodes after losses, in whatever order events of one time come.
        """
        for event in self._context.events:
            if isinstance(event, NodeOut | NodeBack) and event.node == node:
                self._context.flush()
                return

    def _unknown(self, node: str) -> Refused:
        names = ", ".join(list(self._book.nodes)[:8]) or "none; declare [[node]] or cells"
        return Refused(404, "no such node", f"there is no node {node!r}", f"nodes: {names}")


def _name(window: MaintenanceWindow) -> str:
    return f"maintenance {window.id}"


def _taken(window_id: str) -> Refused:
    return Refused(
        409, "id is taken", f"another maintenance has the id {window_id!r}", "choose another id"
    )
