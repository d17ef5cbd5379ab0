"""Policies in rounds in plain loops: the rules of Shockwave and its rivals, by trying everything.

A chooser gets the time, the jobs that are present (with `work` done and whether each `runs`), and
says in which order they may run in the round that begins.
"""

from dataclasses import dataclass, field
from itertools import product
from math import ceil, floor, log


@dataclass(eq=False)
class NaiveJob:
    id: str
    submit: float
    width: int
    duration: float
    regimes: tuple = ()  # (config, epochs, seconds, steps)
    preemptible: float | None = None
    budget: float = 1.0
    start: float | None = None
    cost: float = 0.0
    kept: float = 0.0
    end: float | None = None
    parts: list = field(default_factory=list)

    def run(self, now, resume_cost):
        cost = resume_cost if self.preemptible is None else min(self.preemptible, self.kept)
        self.start, self.cost = now, cost if self.kept else 0.0

    def work(self, now):
        begun = None if self.start is None else self.start + self.cost
        return self.kept + (0.0 if begun is None else max(0.0, now - begun))

    def stop(self, now):
        self.kept = self.work(now)
        self.parts.append((self.id, self.start, now))
        self.start = None

    def stop_at_the_end(self, now):
        if self.start is not None and self.start + self.cost + self.duration - self.kept <= now:
            self.end = self.start + self.cost + self.duration - self.kept
            self.stop(self.end)

    def reached(self, now):
        """Whole epochs in each regime so far, and the seconds into the epoch under way."""
        seen, work = [], self.work(now)
        for place, (_, epochs, seconds, _) in enumerate(self.regimes):
            if place == len(self.regimes) - 1 or work / seconds < epochs - 1e-9:
                whole = min(epochs, floor(work / seconds + 1e-9))
                return [*seen, whole], max(0.0, work - whole * seconds)
            seen.append(epochs)
            work -= epochs * seconds
        return [0], min(work, self.duration)  # a single epoch

    def seconds(self):
        return [seconds for _, _, seconds, _ in self.regimes] or [self.duration]

    def remaining_at_todays_speed(self, now):
        seen, partial = self.reached(now)
        seconds = self.seconds()[len(seen) - 1]
        whole = sum(epochs for _, epochs, _, _ in self.regimes) or 1
        return max(1e-3, (whole - sum(seen)) * seconds - partial)


def play(jobs, gpus, choose, resume_cost=0.0, round_=120.0):
    """Return the parts (job, start, end) in which the jobs run."""
    now, present = 0.0, []
    waits = sorted(jobs, key=lambda job: job.submit)
    while waits or present:
        for job in present:
            job.stop_at_the_end(now)
        present = [job for job in present if job.end is None]
        while waits and waits[0].submit <= now:
            present.append(waits.pop(0))
        idle, chosen = gpus, []
        for job in choose(now, present) if present else ():
            if job.width <= idle:
                chosen.append(job)
                idle -= job.width
        for job in present:
            if job.start is not None and job not in chosen:
                job.stop(now)
        for job in chosen:
            if job.start is None:
                job.run(now, resume_cost)
        now += round_
    return sorted(part for job in jobs for part in job.parts)


def foreseen(rule, job, now):
    """(epochs left, seconds of an epoch) of each regime from now on, by a rule of prediction."""
    seen, partial = job.reached(now)
    each, number = job.seconds(), len(seen)
    whole = sum(epochs for _, epochs, _, _ in job.regimes) or 1
    finished, count = sum(seen[:-1]), len(each)
    if rule == "perfect":
        epochs = [epochs for _, epochs, _, _ in job.regimes] or [1]
    elif rule == "last" or number == count:
        epochs = [*seen[:-1], whole - finished, *[0] * (count - number)]
    else:
        now_ = max((whole - finished) / (count - number + 1), seen[-1])
        later = (whole - finished - now_) / (count - number)
        epochs = [*seen[:-1], now_, *[later] * (count - number)]
    begun = seen[-1] + partial / each[number - 1]
    left = [max(0, epochs[number - 1] - begun), *epochs[number:]]
    ahead = [pair for pair in zip(left, each[number - 1 :], strict=True) if pair[0] > 0]
    total = sum(e * s for e, s in zip(epochs, each, strict=True))
    return total, sum(seen) + partial / each[number - 1], ahead


class NaiveShockwave:
    """Windows planned by trying every set of jobs in every round."""

    def __init__(self, gpus, k, lam, rounds, rule, lazy, round_=120.0):
        self.gpus, self.k, self.lam, self.rounds, self.round = gpus, k, lam, rounds, round_
        self.rule, self.lazy = rule, lazy
        self.lives, self.plan, self.made = {}, None, None

    def __call__(self, now, jobs):
        for job in self.lives.keys() | set(jobs):
            self.lives[job] = job.submit, now if job.end is None else job.end
        regimes = {job: len(job.reached(now)[0]) for job in jobs}
        if self.plan is not None:
            self.plan = {job: row[1:] for job, row in self.plan.items()}
        if (
            not self.plan
            or not next(iter(self.plan.values()))
            or self.made.keys() != regimes.keys()
            or (self.made != regimes and not self.lazy)
        ):
            self.plan, self.made = self.best([self.buyer(job, now) for job in jobs]), regimes
        return sorted(self.plan, key=lambda job: -self.plan[job][0])

    def buyer(self, job, now):
        total, done, ahead = foreseen(self.rule, job, now)
        left = max(1.0, total - job.work(now))
        total = max(total, job.work(now) + left)
        ahead = ahead or [(1.0 / job.seconds()[-1], job.seconds()[-1])]
        slower = left / sum(epochs * seconds for epochs, seconds in ahead)
        contended = max(1.0, self.present(job, now) / self.gpus)
        ftf = (now - job.submit + left * contended) / (total * contended)
        return job, ftf, total, left, done, [(e, s * slower) for e, s in ahead]

    def present(self, job, now):
        """The average number of jobs that are present in the life of a job so far."""
        age = now - job.submit
        if not age:
            return sum(end >= now and other.end is None for other, (_, end) in self.lives.items())
        lived = [min(now, end) - max(job.submit, at) for at, end in self.lives.values()]
        return sum(max(0.0, part) for part in lived) / age

    def best(self, buyers):
        """The best plan: of equals the fewest starts, then the most urgent soonest."""
        buyers = sorted(buyers, key=lambda buyer: -buyer[1])
        widths = [buyer[0].width for buyer in buyers]
        most = [min(self.rounds, ceil(buyer[3] / self.round - 1e-9)) for buyer in buyers]
        ways = [
            (way, self.gpus - sum(w for w, on in zip(widths, way, strict=True) if on))
            for way in product((0, 1), repeat=len(buyers))
        ]
        ways = [(way, idle) for way, idle in ways if idle >= 0]
        begin = (0,) * len(buyers), tuple(int(b[0].start is not None) for b in buyers)
        found = {begin: (0, ((),) * len(buyers), ())}
        for _ in range(self.rounds):
            following = {}
            for (counts, ran), (starts, soon, plan) in found.items():
                for way, idle in ways:
                    if any(
                        (count >= limit) if on else (count < limit and width <= idle)
                        for on, count, limit, width in zip(way, counts, most, widths, strict=True)
                    ):
                        continue
                    key = tuple(map(sum, zip(counts, way, strict=True))), way
                    cost = (
                        starts + sum(on > before for on, before in zip(way, ran, strict=True)),
                        tuple((*s, -on) for s, on in zip(soon, way, strict=True)),
                        (*plan, way),
                    )
                    if key not in following or cost < following[key]:
                        following[key] = cost
            found = following
        value = {counts: self.objective(buyers, counts) for counts, _ in found}
        least = max(value.values()) - 1e-11 * max(1, abs(max(value.values())))
        *_, plan = min(cost for (counts, _), cost in found.items() if value[counts] >= least)
        return {b[0]: [way[j] for way in plan] for j, b in enumerate(buyers)}

    def objective(self, buyers, counts):
        welfare, left = 0.0, []
        for (job, ftf, _, remains, done, ahead), count in zip(buyers, counts, strict=True):
            seconds, reached = count * self.round, done
            for epochs, each in ahead:
                reached += min(epochs, seconds / each)
                seconds = max(0.0, seconds - epochs * each)
            whole = done + sum(epochs for epochs, _ in ahead)
            welfare += job.budget * ftf**self.k * log(max(reached / whole, 1e-6))
            left.append((job.width, max(0.0, remains - count * self.round)))
        area = sum(width * rest for width, rest in left) / self.gpus
        bound = max(area, *(rest for _, rest in left))
        whole = sum(buyer[2] for buyer in buyers)
        return welfare / len(buyers) / self.gpus - self.lam * bound / whole


def allox(now, jobs):
    """What runs goes on, then the least GPU-time left."""

    def rank(job):
        return job.start is None, job.remaining_at_todays_speed(now) * job.width

    return sorted(jobs, key=rank)


class NaiveFilter:
    """The worst treated part of the jobs first, and of both parts who has the least left."""

    def __init__(self, parts):
        self.parts = [*parts]

    def __call__(self, now, jobs):
        left = {job: job.remaining_at_todays_speed(now) for job in jobs}
        part = self.parts.pop(0) if len(self.parts) > 1 else self.parts[0]
        worst = sorted(
            jobs, key=lambda j: -(now - j.submit + left[j]) / (j.work(now) + left[j])
        )  # fmt: skip
        first = ceil(part * len(jobs))
        return [*sorted(worst[:first], key=left.get), *sorted(worst[first:], key=left.get)]


class NaiveShares:
    """Each job a part of all time: who had least of it comes first."""

    def __init__(self, gpus, shares, round_=120.0):
        self.gpus, self.shares, self.round = gpus, shares, round_
        self.since, self.known, self.part, self.had, self.ran = None, None, {}, {}, []

    def __call__(self, now, jobs):
        for job in self.ran:
            self.had[job] += self.round
        known = [(job, len(job.reached(now)[0])) for job in jobs]
        if self.since is None or (known != self.known and now - self.since >= 1000):
            self.since, self.known, self.had = now, known, {}
            self.part = self.shares(now, jobs, self.gpus)
        self.had = {job: self.had.get(job, self.round / 2) for job in jobs}
        due = {job: float(f"{self.part.get(job, 0) / self.had[job]:.9g}") for job in jobs}
        idle, self.ran = self.gpus, []
        for job in sorted(jobs, key=lambda job: (-due[job], self.had[job])):
            if job.width <= idle:
                self.ran.append(job)
                idle -= job.width
        return self.ran


def even(now, jobs, gpus):
    return {job: min(1, gpus / len(jobs)) for job in jobs}


def open_shop(now, jobs, gpus):
    left = {job: job.remaining_at_todays_speed(now) for job in jobs}
    ends = max(sum(job.width * left[job] for job in jobs) / gpus, *left.values(), 0)
    return {job: left[job] / ends for job in jobs}


def max_min(now, jobs, gpus):
    """Raise the level of width · share of all who are below their width, by bisection."""
    low, high = 0.0, max(job.width for job in jobs)
    for _ in range(200):
        level = (low + high) / 2
        fits = sum(min(level, job.width) for job in jobs) <= gpus
        low, high = (level, high) if fits else (low, level)
    return {job: min(1.0, high / job.width) for job in jobs}
