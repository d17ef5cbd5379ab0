"""A naive model of the daemon's engine under first come, first served, using lists only.

It shares nothing with the engine but the structs that go in and out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from daemon.model.inputs import (
    Cancel,
    Drain,
    Ended,
    Hold,
    Lost,
    Release,
    Resume,
    SetPool,
    Started,
    StartFailed,
    Submit,
    Tick,
)
from daemon.model.job import JobPhase, PoolMode

ALIVE = ("held", "pending", "starting", "running", "ending")


@dataclass
class NaiveJob:
    spec: object
    phase: str
    attempt: int = 0
    placed: bool = False
    started: float | None = None
    cancelled: bool = False
    limited: bool = False
    warned: bool = False
    decided: float = 0.0


@dataclass
class NaivePool:
    quota: int
    state: str = "open"
    queue: list = field(default_factory=list)
    until: float | None = None
    back: dict = field(default_factory=dict)


@dataclass
class NaiveDaemon:
    """`step` returns the expected answers: "new", "same", or the status of a refusal."""

    pools: dict
    nodes: dict  # name: GPUs
    jobs: dict = field(default_factory=dict)
    out: set = field(default_factory=set)
    seatless: list = field(default_factory=list)
    now: float = 0.0

    def step(self, now, inputs):
        self.now = now
        self.effects = []
        self._due()
        answers = [self._do(each) for each in inputs]
        self._start()
        return answers

    def _do(self, given):  # noqa: PLR0911
        match given:
            case Submit(spec):
                return self._submit(spec)
            case Cancel(job):
                return self._of(job, self._cancel)
            case Hold(job):
                return self._of(job, self._hold)
            case Release(job):
                return self._of(job, self._release)
            case SetPool():
                return self._set_pool(given)
            case Drain(node):
                new = node not in self.out
                self.out.add(node)
                return "new" if new else "same"
            case Resume(node):
                new = node in self.out
                self.out.discard(node)
                return "new" if new else "same"
            case Tick():
                return "new"
            case Started() | Ended() | StartFailed() | Lost():
                return self._seen(given)
        raise AssertionError(given)

    def _of(self, job_id, do):
        return do(self.jobs[job_id]) if job_id in self.jobs else 404

    def _submit(self, spec):
        if spec.id in self.jobs:
            return "same" if self.jobs[spec.id].spec == spec else 409
        pool = self.pools.get(spec.pool)
        if pool is None:
            return 422
        if pool.state == "drain":
            return 409
        if not 1 <= spec.gpus <= pool.quota:
            return 422
        self.jobs[spec.id] = NaiveJob(spec, "held" if spec.hold else "pending")
        if not spec.hold:
            pool.queue.append(spec.id)
        return "new"

    def _queue(self, job):
        return self.pools[job.spec.pool].queue

    def _cancel(self, job):
        if job.phase == "cancelled":
            return "same"
        if job.phase not in ALIVE:
            return 409
        if job.phase == "ending":
            return "same"
        if job.placed and job.phase in ("starting", "running"):
            job.phase, job.cancelled = "ending", True
            self.effects.append(("end", job.spec.id, job.attempt))
            return "new"
        if job.phase == "pending":
            self._queue(job).remove(job.spec.id)
        if job.phase == "starting":
            self.seatless.remove(job.spec.id)
        job.phase = "cancelled"
        return "new"

    def _hold(self, job):
        if job.phase == "held":
            return "same"
        if job.phase != "pending":
            return 409
        self._queue(job).remove(job.spec.id)
        job.phase = "held"
        return "new"

    def _release(self, job):
        if job.phase != "held":
            return "same" if job.phase in ALIVE else 409
        job.phase = "pending"
        self._queue(job).append(job.spec.id)
        return "new"

    def _set_pool(self, asked):  # noqa: C901
        pool = self.pools.get(asked.pool)
        if pool is None:
            return 404
        if asked.until is not None and asked.until <= self.now:
            return 422
        if asked.until is not None and pool.until is not None:
            return 409
        quota = pool.quota if asked.quota is None else asked.quota
        if quota != pool.quota:
            if quota < self._in_use(asked.pool):
                return 409
            owned = quota + sum(p.quota for p in self.pools.values() if p is not pool)
            if quota > pool.quota and owned > sum(self.nodes.values()):
                return 422
        state = pool.state if asked.state is None else asked.state.value
        before = {"quota": pool.quota, "state": pool.state}
        changed = (quota, state) != (pool.quota, pool.state)
        if asked.until is not None:
            pool.until = asked.until
            after = {"quota": quota, "state": state}
            pool.back = {k: v for k, v in before.items() if v != after[k]}
        elif pool.until is not None:
            for key in ("quota", "state"):
                if getattr(asked, key) is not None:
                    pool.back.pop(key, None)
            if not pool.back:
                pool.until = None
        pool.quota, pool.state = quota, state
        return "new" if changed or asked.until is not None else "same"

    def _in_use(self, name):
        """Return the GPUs in use as the engine counts them, with jobs that ended in this step."""
        return self.used_before[name]

    def begin(self):
        """Record the GPUs in use before a step."""
        self.used_before = {name: self.used(name) for name in self.pools}

    def used(self, name):
        held = ("starting", "running", "ending")
        return sum(
            j.spec.gpus for j in self.jobs.values() if j.spec.pool == name and j.phase in held
        )

    def _seen(self, seen):
        job = self.jobs.get(seen.job)
        if job is None or job.phase not in ALIVE:
            return 404
        if not job.placed or job.attempt != seen.attempt:
            return 409
        if isinstance(seen, Started):
            new, job.started = job.started is None, self.now if job.started is None else job.started
            if job.phase == "starting":
                job.phase = "running"
            return "new" if new else "same"
        job.placed = False
        if job.cancelled:
            job.phase = "cancelled"
        elif job.limited:
            job.phase = "failed"
        elif isinstance(seen, Ended):
            job.phase = "finished" if seen.code == 0 else "failed"
        elif job.spec.requeue and job.attempt < 3:
            job.phase = "pending"
            self._queue(job).append(seen.job)
        else:
            job.phase = "failed" if isinstance(seen, StartFailed) else "lost"
        return "new"

    def _due(self):
        due = [(p.until, name) for name, p in self.pools.items() if p.until is not None]
        for until, name in sorted(due):
            pool = self.pools[name]
            if until <= self.now:
                quota = pool.back.get("quota", pool.quota)
                owned = sum(p.quota for p in self.pools.values()) - pool.quota + quota
                if quota > pool.quota and owned > sum(self.nodes.values()):
                    pool.until = self.now + 300.0
                    self.later += 1
                    continue
                for key, value in pool.back.items():
                    setattr(pool, key, value)
                pool.until, pool.back = None, {}
        for job in self.jobs.values():
            if job.phase != "running" or job.spec.time_limit is None or job.started is None:
                continue
            end = job.started + job.spec.time_limit
            limit, warn = job.spec.time_limit, job.spec.warn
            if not job.warned and end - (warn if warn < limit else limit / 2) <= self.now:
                job.warned = True
                self.effects.append(("warn", job.spec.id, job.attempt))
            if end <= self.now:
                job.phase, job.limited = "ending", True
                self.effects.append(("end", job.spec.id, job.attempt))

    def _start(self):
        """Start the head of each pool as long as it fits in the quota."""
        self.decided = set()
        for name, pool in self.pools.items():
            while pool.state != "hold" and pool.queue:
                job = self.jobs[pool.queue[0]]
                if self.used(name) + job.spec.gpus > pool.quota:
                    break
                del pool.queue[0]
                job.phase, job.attempt, job.started = "starting", job.attempt + 1, None
                job.placed = job.cancelled = job.limited = job.warned = False
                job.decided = self.now
                self.decided.add((job.spec.id, job.attempt))

    def seat(self, decided, placed):
        """Adopt the engine's order of starts and placements; return whether they are right."""
        assert set(decided) == self.decided
        self.seatless += [job_id for job_id, _ in decided]
        expected = self._next()
        assert [job_id for job_id, _, _ in placed] == expected
        self.seatless = [job_id for job_id in self.seatless if job_id not in expected]
        for job_id, attempt, nodes in placed:
            job = self.jobs[job_id]
            assert job.attempt == attempt
            assert not self.out & {name for name, _ in nodes}, "placed on a node that is out"
            job.placed = True
            self.places[job_id] = nodes
        given = self._given()
        assert len(given) == len(set(given)), "a GPU is assigned twice"

    def _given(self):
        return [
            (name, gpu)
            for job_id, nodes in self.places.items()
            if self.jobs[job_id].placed
            for name, gpus in nodes
            for gpu in gpus
        ]

    def _next(self):
        """Return the jobs that get GPUs: in order, and for an hour past those that do not fit."""
        there = sum(n for name, n in self.nodes.items() if name not in self.out)
        free = there - sum(name not in self.out for name, _ in self._given())
        found = []
        for job_id in self.seatless:
            job = self.jobs[job_id]
            if job.spec.gpus <= free:
                found.append(job_id)
                free -= job.spec.gpus
            elif job.spec.gpus <= there and self.now - job.decided >= 3600.0:
                self.kept += free > 0
                break
            else:
                self.passed += free > 0
        return found

    later: int = 0  # overrides of time limits that were too late
    passed: int = 0  # jobs that wait while others may start
    kept: int = 0  # jobs that wait with GPUs reserved for them
    places: dict = field(default_factory=dict)
    used_before: dict = field(default_factory=dict)

    def phases(self):
        return {job_id: JobPhase(job.phase) for job_id, job in self.jobs.items()}

    def modes(self):
        return {name: (pool.quota, PoolMode(pool.state)) for name, pool in self.pools.items()}
