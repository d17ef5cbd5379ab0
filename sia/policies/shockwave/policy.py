"""Shockwave: rounds of a window planned as a market, with foresight (Zheng et al., NSDI 2023).

Jobs buy rounds; jobs with the worst expected fairness have the largest budgets, and no GPU that a
job can use stays idle (`market`). `foresight` predicts the remaining run times of jobs from their
progress, `estimates` their finish-time fairness from their lives so far.

The policy plans a new window when jobs arrive, end or change, and when the window is over. A solver
chooses the number of rounds of each job, and the round waits for its answer. If the solver fails or
is late, each round goes to the job that gains most.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import Annotated, Any, Literal
from zlib import crc32

from msgspec import Meta, Struct, convert, field, to_builtins

from sia.contract.policy import Changes, Needs, RoundOutlook
from sia.contract.proposals import Proposals, Solve
from sia.contract.views import ClusterStateView, JobStateView, PoolStateView
from sia.events import ProgramSolved
from sia.policies.shockwave.estimates import PresentCount, contention, fairness_estimate
from sia.policies.shockwave.foresight import ForeseenJob, PredictionRule, draws
from sia.policies.shockwave.market import (
    Market,
    MarketJob,
    best_plan,
    cheapest,
    counts_of,
    program,
    start_of,
    weight_of,
)
from sia.policies.shockwave.rounds import RoundPolicy, RoundSeconds, is_pinned
from sia.program import SolveLimit
from sia.wording import duration

MOST_ROUNDS = 100
"""Largest number of rounds in a window. A plan for more than three hours would be replaced before
it is carried out."""

MOST_DRAWS = 100
"""Largest number of trajectories of a job: each ten lengthen a plan for 300 jobs by 0.1 s."""

SOLVE_GAP = 1e-4
"""Relative gap at which a plan is good enough, as in the paper's artifact."""

SOLVE_LIMIT = SolveLimit(15.0, 2_000, 200_000, SOLVE_GAP)
"""Limits of one solve: in a daemon the paper's 15 s; in a replay the work that a plan of 900 jobs
on 256 GPUs takes within 15 s."""

LEAST_LEFT = 1.0
"""Smallest predicted remaining run time of a job that has not ended, in seconds."""


USUAL_K, USUAL_LAMBDA, USUAL_ROUNDS = 5.0, 1.0, 20

PRESETS = {
    "fair": (20.0, 1.0, USUAL_ROUNDS),
    "even": (30.0, 60.0, 40),
    "busy": (USUAL_K, USUAL_LAMBDA, USUAL_ROUNDS),
}
"""k, lambda and rounds by name: docs/results/shockwave.md says what each reaches on a log."""


class ShockwaveParams(Struct, frozen=True):
    """The options of Shockwave."""

    k: Annotated[float, Meta(ge=0, le=100)] | None = None
    """Exponent of the estimated finish-time fairness in a job's weight: a higher k is fairer. None
    for that of the preset, or 5."""
    lam: Annotated[float, Meta(ge=0, le=1e6)] | None = field(default=None, name="lambda")
    """Weight of the makespan: a higher lambda uses more GPU-time. None for that of the preset, or
    1."""
    rounds: Annotated[int, Meta(ge=1, le=MOST_ROUNDS)] | None = None
    """Number of rounds in a window; None for that of the preset, or 20."""
    predict: PredictionRule = "restate"
    """How the remaining work of jobs is predicted."""
    noise: Annotated[float, Meta(ge=0, le=100)] = 0.0
    """Error of each predicted run time in percent, up or down depending on the job; for
    experiments."""
    round: RoundSeconds = 120.0
    """Seconds."""
    lazy: bool = False
    """Whether a change of a job waits until the window is over."""
    draws: Annotated[int, Meta(ge=0, le=MOST_DRAWS)] = 0
    """Number of random trajectories of each job, for the expected welfare; with 0 the policy uses
    the mean."""
    preset: Literal["", "fair", "even", "busy"] = ""
    """A name for values of k and lambda, and of rounds if no number is given."""

    def __post_init__(self) -> None:
        """Refuse a preset together with k or lambda. Raises ValueError."""
        if self.preset and (self.k, self.lam) != (None, None):
            raise ValueError(
                f"preset {self.preset} sets k and lambda; leave out either these or the preset"
            )

    @property
    def weights(self) -> tuple[float, float]:
        """Return k and lambda, of the preset if there is one."""
        if self.preset:
            return PRESETS[self.preset][:2]
        k = USUAL_K if self.k is None else self.k
        return k, USUAL_LAMBDA if self.lam is None else self.lam

    @property
    def window(self) -> int:
        """Return the rounds in a window, of the preset if no other number is given."""
        if self.rounds is not None:
            return self.rounds
        return PRESETS[self.preset][2] if self.preset else USUAL_ROUNDS


class _Window(Struct):
    """The plan of a pool."""

    jobs: list[tuple[str, int]]
    """Jobs in the order of urgency, and the regime of each when the plan was made."""
    plan: list[list[int]]
    ftf: list[float]
    begin: int = 0
    """Number of its rounds that are over."""


class _Memory(Struct):
    """The memory of the policy."""

    decided: float
    windows: dict[str, _Window]
    counts: dict[str, tuple[float, float, int]]
    since: dict[str, tuple[float, float]]
    asked: list[tuple[str, Market, _Window]] | None
    asked_at: float


class Shockwave(RoundPolicy):
    """A round costs O(jobs); a plan O(jobs · rounds · widths), and a program to solve."""

    Params = ShockwaveParams
    needs = Needs(run_times=True, preemption=True, solver=True)
    heeds = frozenset({"budget", "min_run_time", "mode", "regimes"})

    def attach(self, state: ClusterStateView) -> None:
        """Start without plans."""
        self._windows: dict[str, _Window] = {}
        self._counts = {name: PresentCount(max(0.0, state.now)) for name in state.pools}
        self._since: dict[str, tuple[float, float]] = {}  # submission, integral then
        self._asked: list[tuple[str, Market, _Window]] | None = None
        self._asked_at = -1.0
        self._answer: Sequence[float] | None = None
        super().attach(state)

    def memory(self) -> Any:
        """Return plans, counts of jobs, and whether a solver's answer is open."""
        counts = {name: count.memory() for name, count in self._counts.items()}
        kept = _Memory(
            self._decided, self._windows, counts, self._since, self._asked, self._asked_at
        )
        return to_builtins(kept)

    def resume(self, state: ClusterStateView, memory: Any) -> None:
        """Restore the plans, the counts and the open question."""
        kept = convert(memory, _Memory)
        if kept.since.keys() != state.jobs.keys():
            raise ValueError("the memory of Shockwave is of other jobs")
        self.attach(state)
        self._decided, self._windows, self._since = kept.decided, kept.windows, kept.since
        self._counts = {name: PresentCount(*count) for name, count in kept.counts.items()}
        self._asked, self._asked_at = kept.asked, kept.asked_at

    def submitted(self, job: JobStateView) -> None:
        """Count a new job as present. O(1)."""
        job_id = job.job.id
        if job_id not in self._since:
            now = max(self.state.now, job.job.submit)
            count = self._counts[job.job.pool]
            self._since[job_id] = now, count.area(now)
            count.change(now, 1)

    def left(self, job: JobStateView) -> None:
        """Forget a job that was cancelled. O(1)."""
        if job.job.id not in self.state.jobs:
            self._gone(job)

    def finished(self, job: JobStateView) -> None:
        """Forget a job. O(1)."""
        self._gone(job)

    def _gone(self, job: JobStateView) -> None:
        if self._since.pop(job.job.id, None) is not None:
            self._counts[job.job.pool].change(self.state.now, -1)

    def solved(self, answer: ProgramSolved) -> None:
        """Keep the numbers of rounds of the solution, if there is one."""
        self._answer = answer.values if answer.status in ("optimal", "feasible") else ()

    def propose(self, now: float, changes: Changes) -> Proposals:
        """Plan and act when a round begins; act on a plan once its answer has arrived."""
        if self.begins(now, changes):
            late = self._asked is not None
            stale = []
            for pool, jobs in self.present():
                window = self._windows.get(pool.name)
                if window is not None:
                    window.begin += 1
                if window is None or self._is_stale(window, jobs, now):
                    stale.append((pool.name, *self._market(pool, jobs, now)))
                else:
                    yield from self._act(pool, jobs, window)
            if stale and not late:
                self._asked, self._answer, self._asked_at = stale, None, now
                markets = [market for _, market, _ in stale]
                yield Solve(program(markets), SOLVE_LIMIT, start_of(markets))
            else:
                yield from self._adopt(stale, None)
        if self._answer is not None and self._asked is not None:
            asked, answer = self._asked, self._answer
            self._asked = self._answer = None
            if self._decided == self._asked_at:  # else the round that asked is over
                yield from self._adopt(asked, answer or None)

    def _adopt(
        self, planned: Sequence[tuple[str, Market, _Window]], answer: Sequence[float] | None
    ) -> Proposals:
        """Make plans from an answer, or greedily without one, and begin them."""
        there = dict(self.present())
        found = None
        if answer is not None:
            found = counts_of([market for _, market, _ in planned], answer)
        for place, (name, market, window) in enumerate(planned):
            window.plan = best_plan(market, None if found is None else found[place]).plan
            self._windows[name] = window
            pool = self.state.pools[name]
            if pool in there:
                yield from self._act(pool, there[pool], window)

    def _is_stale(self, window: _Window, jobs: Sequence[JobStateView], now: float) -> bool:
        """Return whether jobs arrived, ended or changed, or the window is over. O(jobs)."""
        if not window.plan or window.begin >= len(window.plan[0]):
            return True  # a plan in the memory may be shorter than today's windows
        known = dict(window.jobs)
        if known.keys() != {job.job.id for job in jobs}:
            return True
        return not self.params.lazy and any(
            known[job.job.id] != self.regime(job, now) for job in jobs
        )

    def _act(self, pool: PoolStateView, jobs: Sequence[JobStateView], window: _Window) -> Proposals:
        """Carry out the present round of a plan; idle GPUs go to the most urgent jobs."""
        by_id = {job.job.id: job for job in jobs}
        due: list[JobStateView] = []
        others: list[JobStateView] = []
        for (job_id, _), row in zip(window.jobs, window.plan, strict=True):
            if job_id in by_id:
                (due if row[window.begin] else others).append(by_id[job_id])
        yield from self.carry_out(pool, jobs, {job: job.job.width for job in (*due, *others)})

    def outlook(self, job: JobStateView) -> RoundOutlook | None:
        """Return its weight, its planned rounds, and the cost of one more round for another job.

        O(jobs · log jobs).
        """
        window = self._windows.get(job.job.pool)
        there = dict(self.present())
        if job.pool not in there:
            return None
        now, round_ = self.state.now, self.params.round
        market, _ = self._market(job.pool, there[job.pool], now)
        plans: dict[str, list[int]] = {}
        if window is not None:
            rows = zip(window.jobs, window.plan, strict=True)
            plans = {job_id: row[window.begin :] for (job_id, _), row in rows}
        weights = {buyer.id: weight_of(buyer.budget, buyer.ftf, market.k) for buyer in market.jobs}
        mine = job.job.id
        place = 1 + sum(weight > weights[mine] for weight in weights.values())
        buyer = next(buyer for buyer in market.jobs if buyer.id == mine)
        plan = tuple(plans.get(mine, ()))
        if sum(plan) >= market.most(buyer):  # it ends in the last of its rounds
            plan = plan[: len(plan) - plan[::-1].index(1)] if 1 in plan else ()
        counts = {job_id: sum(row) for job_id, row in plans.items()}
        other, loss = cheapest(market, mine, counts) if 0 in plan or not plan else ("", 0.0)
        after, speed = self._change(job)
        return RoundOutlook(
            weights[mine], buyer.ftf, place, len(weights), max(0.0, self._decided), round_, plan,
            other, loss, after, speed,
        )  # fmt: skip

    def reason(self, job: JobStateView) -> str:
        """Return the job's estimated fairness and weight, and the predicted change of its speed."""
        window = self._windows[job.job.pool]
        k, _ = self.params.weights
        for (job_id, _), ftf in zip(window.jobs, window.ftf, strict=True):
            if job_id == job.job.id:
                budget = 1.0 if job.job.budget is None else job.job.budget
                after, speed = self._change(job)
                change = (
                    f"; after {duration(after)} it is expected to run {speed:.3g} times as fast"
                    if after
                    else ""
                )
                return (
                    f"a round of the plan; its estimated finish-time fairness is {ftf:.2f}, "
                    f"its weight {weight_of(budget, ftf, k):.3g}{change}"
                )
        return "GPUs that the plan leaves idle"

    def _change(self, job: JobStateView) -> tuple[float, float]:
        """Return after how much work its speed is predicted to change, and the factor; or 0, 1."""
        (epochs, seconds), *later = self._foreseen(job, self.state.now).ahead() or [(0.0, 0.0)]
        after = epochs * seconds
        for more, each in later:
            if each != seconds:
                return after, seconds / each
            after += more * each
        return 0.0, 1.0

    def _market(
        self, pool: PoolStateView, jobs: Sequence[JobStateView], now: float
    ) -> tuple[Market, _Window]:
        """Return the market of a pool, most urgent jobs first, and an empty window for its plan."""
        buyers = [(self._buyer(pool, job, now), self.regime(job, now)) for job in jobs]
        buyers.sort(key=lambda pair: -pair[0].ftf)
        params = self.params
        k, lam = params.weights
        market = Market(
            max(1, pool.quota), params.round, params.window, k, lam,
            [buyer for buyer, _ in buyers],
        )  # fmt: skip
        window = _Window(
            [(buyer.id, regime) for buyer, regime in buyers], [], [buyer.ftf for buyer, _ in buyers]
        )
        return market, window

    def _buyer(self, pool: PoolStateView, job: JobStateView, now: float) -> MarketJob:
        seen = self._foreseen(job, now)
        wrong = self._error(job.job.id)
        total = seen.total * wrong
        left = max(LEAST_LEFT, total - seen.run)
        total = max(total, seen.run + left)
        since, area = self._since[job.job.id]
        present = self._counts[job.job.pool].average(since, area, now)
        contended = contention(present, max(1, pool.quota))
        ahead = seen.ahead() or [(LEAST_LEFT / seen.seconds[-1], seen.seconds[-1])]
        stretch = left / fsum(epochs * seconds for epochs, seconds in ahead)
        done = seen.done
        epochs = done + fsum(epochs for epochs, _ in ahead)
        running = job.stream is not None
        return MarketJob(
            job.job.id, job.job.width, done, epochs, total,
            fairness_estimate(max(0.0, now - since), left, total, contended),
            [(each, seconds * stretch) for each, seconds in ahead],
            1.0 if job.job.budget is None else job.job.budget, running, running and is_pinned(job),
            self._draws(job.job.id, seen, stretch),
        )  # fmt: skip

    def _foreseen(self, job: JobStateView, now: float) -> ForeseenJob:
        return self.foresee(job, now, self.params.predict)

    def _draws(
        self, job_id: str, seen: ForeseenJob, stretch: float
    ) -> list[list[tuple[float, float]]]:
        """Return drawn trajectories of a job whose regimes may change, `stretch` times as slow."""
        known = self.params.predict == "perfect" or len(seen.ahead()) < 2
        if known or not self.params.draws:
            return []
        found = draws(seen, fsum(seen.epochs), self.params.draws, job_id)
        return [[(each, seconds * stretch) for each, seconds in path] for path in found]

    def _error(self, job_id: str) -> float:
        """Return the factor by which the predicted run time of a job is wrong."""
        sign = 1 if crc32(job_id.encode()) % 2 else -1
        return float(1 + sign * self.params.noise / 100)

    def check(self) -> None:
        """Assert that every job is counted."""
        assert self._since.keys() == self.state.jobs.keys()
        for name, count in self._counts.items():
            assert count.count == sum(job.job.pool == name for job in self.state.jobs.values())
