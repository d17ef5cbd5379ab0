"""The GPUs and places that a plan leaves free in each lease, stored as spans of leases."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from operator import lt

from sia.policies.chronus.leases.claims import Claim

Room = tuple[int, ...]
"""The GPUs, then the places of each size, that the jobs of one lease may use together; see
`NodeSizes.room`."""

_KNOWN = tuple(range(1 << 16))
"""The first lease numbers, made once: plans name hundreds of thousands. With leases of 20 minutes
they last for two years; later numbers are made for each plan."""


class FreeLeases:
    """Free GPUs and places, stored as spans of leases with equal values; plans have few spans."""

    def __init__(self, room: Room) -> None:
        """Start with the whole room free in every lease."""
        self._begins = [0]  # the first lease of each span, which ends with the next one
        self._left = [[have] for have in room]  # of GPUs and places: free in each span
        self._first: dict[Room, int] = {}  # by use: no lease before this one has so much free

    @classmethod
    def beside(cls, room: Room, plan: Iterable[tuple[Claim, Sequence[int]]]) -> FreeLeases:
        """Return what the leases of these jobs leave free. O(spans of leases · log spans)."""
        free, changes = cls(room), [{0: have} for have in room]
        for claim, leases in plan:
            for span in spans(leases):
                for column, use in zip(changes, claim.uses, strict=True):
                    column[span.start] = column.get(span.start, 0) - use
                    column[span.stop] = column.get(span.stop, 0) + use
        free._begins = sorted(changes[0])
        free._left = [[*accumulate(map(column.__getitem__, free._begins))] for column in changes]
        return free

    def find(self, claim: Claim, within: int) -> list[range] | None:
        """Return the first free leases before `within` for a job; None if there are too few."""
        uses, wanted, found = claim.uses, claim.leases, list[range]()
        begins, left = self._begins, self._left
        n = bisect_right(begins, self._first.get(uses, 0)) - 1
        while True:
            fits = self._fits(uses, n, len(begins))
            if fits is None:
                return None
            begin = begins[fits]
            if not found:
                self._first[uses] = begin
            if begin + wanted > within:
                return None
            stop = bisect_left(begins, begin + wanted, fits + 1)
            least = map(min, (column[fits:stop] for column in left))
            if any(map(lt, least, uses)):
                stop = self._lacks(uses, fits + 1)
                found.append(range(begin, begins[stop]))
                wanted -= begins[stop] - begin
                n = stop + 1
            else:
                found.append(range(begin, begin + wanted))
                return found

    def _fits(self, uses: Room, n: int, count: int) -> int | None:
        """Return the first of the spans from `n` on that has so much free, or None."""
        if len(uses) == 1:
            use, column = uses[0], self._left[0]
            return next((n for n in range(n, count) if column[n] >= use), None)
        pairs = [*zip(self._left, uses, strict=True)]
        found = (n for n in range(n, count) if all(column[n] >= use for column, use in pairs))
        return next(found, None)

    def _lacks(self, uses: Room, n: int) -> int:
        """Return the first of the spans from `n` on that has less free; there must be one."""
        pairs = [*zip(self._left, uses, strict=True)]
        while all(column[n] >= use for column, use in pairs):
            n += 1
        return n

    def take(self, claim: Claim, within: int) -> list[range] | None:
        """Take the first free leases before `within` for a job, and return them.

        If there are too few, return None and take none.
        """
        found = self.find(claim, within)
        if found is not None:
            self._change(claim.uses, -1, found)
        return found

    def use(self, claim: Claim, leases: Sequence[int]) -> None:
        """Use these leases, which must ascend."""
        self._change(claim.uses, -1, spans(leases))

    def give_back(self, claim: Claim, leases: Sequence[int]) -> None:
        """Make leases free again that a job has used."""
        self._first.clear()
        self._change(claim.uses, 1, spans(leases))

    def _change(self, uses: Room, sign: int, found: Iterable[range]) -> None:
        for span in found:
            begin, end = self._split(span.start), self._split(span.stop)
            for column, use in zip(self._left, uses, strict=True):
                more = sign * use
                column[begin:end] = [left + more for left in column[begin:end]]
            self._merge(end)
            self._merge(begin)

    def _split(self, at: int) -> int:
        """Return the index of the span that begins at a lease; split a span if necessary."""
        n = bisect_left(self._begins, at)
        if n == len(self._begins) or self._begins[n] != at:
            self._begins.insert(n, at)
            for column in self._left:
                column.insert(n, column[n - 1])
        return n

    def _merge(self, n: int) -> None:
        """Make span n a part of the span before it if both have equal values."""
        if n > 0 and all(column[n] == column[n - 1] for column in self._left):
            del self._begins[n]
            for column in self._left:
                del column[n]

    @property
    def least(self) -> int:
        """The fewest GPUs that are free in a lease; negative if more are used than there are."""
        return min(self._left[0])

    @property
    def is_overfull(self) -> bool:
        """Whether the jobs of some lease use more than there is."""
        return any(min(column) < 0 for column in self._left)


def spans(leases: Sequence[int]) -> Iterator[range]:
    """Yield the spans of consecutive leases. O(spans · log leases)."""
    begin, count = 0, len(leases)
    while begin < count:
        first, end = leases[begin], begin + 1
        if leases[-1] - first == count - 1 - begin:
            end = count
        elif leases[end] == first + 1:
            ahead = range(count)
            end = bisect_right(ahead, first - begin, end, key=lambda n: leases[n] - n)
        yield range(first, first + end - begin)
        begin = end


def moved(leases: Sequence[int], by: int) -> tuple[int, ...]:
    """Return the leases with `by` added to each number. O(leases), but fast, as spans."""
    return numbers([range(span.start + by, span.stop + by) for span in spans(leases)])


def numbers(found: Sequence[range]) -> tuple[int, ...]:
    """Return the leases of these spans one by one. O(leases), but fast, as copies of spans."""
    parts = [_KNOWN[s.start : s.stop] if s.stop <= len(_KNOWN) else tuple(s) for s in found]
    return parts[0] if len(parts) == 1 else tuple(chain.from_iterable(parts))
