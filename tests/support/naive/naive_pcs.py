"""A naive replay of elastic policies in one pool, with predictions: plain loops, from the rules.

It has jobs, widths and a clock of its own, and shares only the model of jobs (`Job.speed`) and the
dealing of `wfq` (`naive_wfq`) with other tests.
"""

from copy import copy
from math import floor, inf

from tests.support.naive.naive_elastic import _least, _most, naive_wfq

EQUAL = 1e-9


class NaiveJob:
    """A job with what it has done; `run_time` is how long it runs, `estimate` what is believed."""

    def __init__(self, job, run_time, estimate):
        self.job, self.run_time, self.estimate = job, run_time, estimate
        self.least, self.most = _least(job), _most(job)
        self.width, self.done, self.since, self.pause = 0, 0.0, 0.0, 0.0
        self.seen, self.looks = 0, 0  # of themis-lease: numbers of jobs, and how often it looked

    def work(self, now):
        if not self.width:
            return self.done
        return self.done + max(0.0, now - self.since - self.pause) * self.job.speed(self.width)

    def left(self, now):
        return max(0.0, self.estimate - self.work(now))

    def end(self, now):
        if not self.width:
            return inf
        if self.work(now) >= self.run_time:  # told to be over: rounding shall not delay it
            return max(now, self.since + self.pause)
        left = max(0.0, self.run_time - self.done) / self.job.speed(self.width)
        return max(now, self.since + self.pause + left)

    def size(self, work):
        return work / self.job.speed(self.least) * self.least

    def speed_on(self, gpus):
        if gpus <= self.least:
            return self.job.speed(self.least) * gpus / self.least
        low = floor(min(gpus, self.most))
        more = min(gpus, self.most) - low
        slow = self.job.speed(low)
        return slow + more * (self.job.speed(low + 1) - slow) if more else slow


def in_order(jobs, gpus, *, passing):
    dealt = {}
    for each in jobs:
        if gpus and each.least <= gpus:
            dealt[each] = min(gpus, each.most)
            gpus -= dealt[each]
        elif not passing:
            break
    return dealt


def fifo(jobs, gpus, now, pool):
    return in_order(jobs, gpus, passing=False)


def srtf(jobs, gpus, now, pool):
    return in_order(sorted(jobs, key=lambda each: each.left(now)), gpus, passing=True)


def srsf(jobs, gpus, now, pool):
    order = sorted(jobs, key=lambda each: each.size(each.left(now)))
    return in_order(order, gpus, passing=True)


def afs(jobs, gpus, now, pool):
    dealt = dict.fromkeys(jobs, 0)

    def step(each):
        return 1 if dealt[each] else each.least

    def length(each):
        return each.left(now) / each.job.speed(dealt[each]) if dealt[each] else inf

    def gains(each):
        before = each.job.speed(dealt[each]) if dealt[each] else 0.0
        gain = each.job.speed(dealt[each] + step(each)) - before
        return gain / before if before else inf, gain / (before + gain)

    def prior(a, b):
        if not dealt[a] and not dealt[b]:
            alone = [each.left(now) / each.job.speed(each.least) for each in (a, b)]
            return b if alone[1] < alone[0] else a
        short, long = (a, b) if length(a) <= length(b) else (b, a)
        return long if gains(long)[1] > gains(short)[0] + EQUAL else short

    while able := [e for e in jobs if dealt[e] + step(e) <= e.most and step(e) <= gpus]:
        top = able[0]
        for each in able[1:]:
            top = prior(top, each)
        gpus -= step(top)
        dealt[top] += step(top)
    return dealt


def themis(jobs, gpus, now, pool):
    quota, dealt = gpus, {}
    while gpus:
        worst = None
        for each in jobs:
            if each in dealt or each.least > gpus:
                continue
            width = min(gpus, each.most)
            share = min(quota / max(1.0, each.seen / each.looks), each.most)
            fair = each.estimate / each.speed_on(share)
            behind = (now - each.job.submit + each.left(now) / each.job.speed(width)) / fair
            if worst is None or round(behind, 9) > worst[0]:
                worst = round(behind, 9), each, width
        if worst is None:
            break
        dealt[worst[1]] = worst[2]
        gpus -= worst[2]
    return dealt


def wfq(sizes, weights, zeta, delta):
    def deal(jobs, gpus, now, pool):
        pairs = [(each.job, each.size(each.estimate)) for each in jobs]
        found = naive_wfq(pairs, gpus, sizes, weights, zeta, delta, now)
        _note_turn(jobs, gpus, sizes, weights, now, pool)
        return {each: found[each.job.id] for each in jobs if each.job.id in found}

    return deal


def _note_turn(jobs, gpus, sizes, weights, now, pool):
    """The oldest job of one GPU has its turn when its part of the GPUs would have done it."""
    fit = [e for e in jobs if e.least <= gpus and _leads(e, jobs, sizes)]
    if not fit or fit[0].least > 1:
        return
    size = fit[0].size(fit[0].estimate)
    part = gpus * weights[_queue(size, sizes)] / sum(weights)
    turn = fit[0].job.submit + (0.0 if part >= 1 else size / part)
    if turn > now:
        pool.wake = turn, fit[0]


def _queue(size, sizes):
    return sum(size > limit for limit in sizes)


def _leads(job, jobs, sizes):
    own = _queue(job.size(job.estimate), sizes)
    line = [each for each in jobs if _queue(each.size(each.estimate), sizes) == own]
    return line[0] is job


class NaivePool:
    """A pool under a policy; with a lease GPUs are dealt again at the end of each."""

    def __init__(self, gpus, deal, resume_cost=0.0, lease=None):
        self.gpus, self.deal, self.cost, self.lease = gpus, deal, resume_cost, lease
        self.jobs, self.ends, self.now, self.dealt, self.again = [], {}, 0.0, 0.0, inf
        self.wake = None

    def copy(self):
        """The same pool, in which jobs run as long as is believed."""
        other = copy(self)
        other.jobs, other.ends, other.wake = [copy(each) for each in self.jobs], {}, None
        for each in other.jobs:
            each.run_time = max(each.estimate, each.work(self.now))
        return other

    def next(self):
        wake = self.wake[0] if self.wake else inf
        return min([self.again, wake, *(each.end(self.now) for each in self.jobs)])

    def look(self):
        for each in self.jobs:
            each.seen, each.looks = each.seen + len(self.jobs), each.looks + 1

    def advance(self, now, *, arrives=False):
        """Leases end, then jobs."""
        over = [each for each in self.jobs if each.end(self.now) <= now]
        if self.lease is not None and self.jobs:
            if self.again == inf:  # nobody wants more, so nothing is dealt
                end = self.dealt + self.lease
                while end < now:
                    self.look()
                    end += self.lease
            elif self.again <= now and not over and not arrives:
                self.look()
        for each in over:
            self.look()
            self.jobs.remove(each)
            self.ends[each.job.id] = now
        self.now = now

    def join(self, job):
        self.look()
        self.jobs.append(job)
        job.seen, job.looks = len(self.jobs), 1

    def settle(self):
        now, self.wake = self.now, None
        wanted = self.deal(self.jobs, self.gpus, now, self)
        for each in self.jobs:
            width = wanted.get(each, 0)
            if width == each.width:
                continue
            each.done, each.width, each.since = each.work(now), width, now
            if each.job.preemptible == "restart":
                each.done = 0.0
            own = each.job.stop_seconds
            cost = self.cost if own is None else min(own, each.done)
            each.pause = cost if each.done else 0.0
        if self.wake and self.wake[1].width:
            self.wake = None
        short = any(each.width < each.most for each in self.jobs)
        self.dealt = now
        self.again = now + self.lease if short and self.lease is not None else inf

    def told(self, job_id):
        """When a job ends if nobody comes later."""
        pool = self.copy()
        pool.settle()
        while job_id not in pool.ends:
            pool.advance(pool.next())
            pool.settle()
        return pool.ends[job_id]

    def replay(self, jobs):
        """Return the end of each job as told at its submission, and as it was."""
        told, waiting = {}, [*jobs]
        while True:
            arrives = waiting[0].job.submit if waiting else inf
            now = min(arrives, self.next())
            if now == inf:
                return told, self.ends
            self.advance(now, arrives=arrives == now)
            while waiting and waiting[0].job.submit == now:
                job = waiting.pop(0)
                self.join(job)
                told[job.job.id] = self.told(job.job.id)
            self.settle()
