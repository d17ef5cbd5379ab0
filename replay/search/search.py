"""The search: points in generations, each simulated on several samples (§3.3).

A generation depends only on the seed and on earlier results, so neither the number of processes nor
an interruption affects the results. The results of each point are stored in a folder of `runs`,
from which a repeated command reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from random import Random
from typing import NamedTuple

from replay.experiment.folder import read_runs, run_folder, whole_run
from replay.run.output import write_json
from replay.run.workers import signals_held, worker_processes
from replay.search.algorithms import Genome, Individual, front_of, make_algorithm, random_genome
from replay.search.objectives import Measured, Objective, Prepared, evaluate
from replay.search.on_ray import ray_cluster
from replay.search.space import Point, Space
from sia.console.errors import UserError

GENERATION = 20
"""Points in a generation and in SPEA2's archive, so that a front fits in one table."""

BARREN = 20
"""Generations without a new point after which the space counts as exhausted."""

Done = Callable[[str, int, int], None]
"""Called with the name of what is counted, the number done, and the total."""


class SearchPlan(NamedTuple):
    """The parameters of a search."""

    space: Space
    algorithm: str
    objectives: Sequence[Objective]
    seed: int
    train: Sequence[Prepared]
    test: Sequence[Prepared]
    resume_cost: float = 0.0


class Evaluated(NamedTuple):
    """A point with the results of its simulations on one side: training or test samples."""

    number: int
    point: Point
    runs: Sequence[Measured]

    def mean(self, objective: str) -> float:
        """Return the mean of an objective over the samples."""
        return sum(run[objective] for run in self.runs) / len(self.runs)


class Found(NamedTuple):
    """All points of a search in order, and the front: its points on the samples of both sides."""

    points: Sequence[Evaluated]
    front: Sequence[tuple[Evaluated, Evaluated]]
    fifo: tuple[Evaluated, Evaluated]
    """The first point, with its results on both sides."""


def search(
    plan: SearchPlan, folder: Path, points: int, processes: int, done: Done, ray: str = ""
) -> Found:
    """Evaluate points on training samples, and their front also on test samples. Raises UserError.

    `folder` is the folder of results, opened by `replay.experiment.folder.opened`; `ray` is the
    address of a Ray cluster to use instead of local processes.
    """
    with _simulator(plan, folder, processes, ray) as simulator:
        found = _searched(plan, simulator, points, done)
        values = [_values(plan, each) for each in found]
        chosen = list(dict.fromkeys([0, *front_of(values)]))  # the first point is FIFO
        tested = simulator.evaluate(
            [(found[i].number, found[i].point) for i in chosen], "test", "points tested", done
        )
        pairs = dict(zip(chosen, tested, strict=True))
    best = sorted(front_of(values), key=lambda i: values[i])
    return Found(found, [(found[i], pairs[i]) for i in best], (found[0], pairs[0]))


def _values(plan: SearchPlan, point: Evaluated) -> tuple[float, ...]:
    return tuple([point.mean(str(objective)) for objective in plan.objectives])


def _searched(plan: SearchPlan, simulator: _Simulator, most: int, done: Done) -> list[Evaluated]:
    """Return up to `most` evaluated points, in the order in which they were proposed."""
    random = Random(plan.seed)  # noqa: S311  a search, no secret
    space = plan.space
    algorithm = make_algorithm(plan.algorithm, space.dimensions, GENERATION, random)
    known: dict[object, Evaluated] = {}
    genomes: Sequence[Genome] = space.first()
    genomes = [
        *genomes,
        *(random_genome(random, space.dimensions) for _ in range(GENERATION - len(genomes))),
    ]
    barren = 0
    while len(known) < most and barren < BARREN:
        points = [space.point(genome) for genome in genomes]
        new: dict[object, Point] = {}
        for point in points:
            if point.settings not in known and len(known) + len(new) < most:
                new.setdefault(point.settings, point)
        numbered = list(enumerate(new.values(), len(known)))
        for result in simulator.evaluate(numbered, "train", "points", done, len(known), most):
            known[result.point.settings] = result
        algorithm.tell([
            Individual(genome, _values(plan, known[point.settings]))
            for genome, point in zip(genomes, points, strict=True)
            if point.settings in known
        ])  # fmt: skip
        genomes = algorithm.ask()
        barren = 0 if new else barren + 1
    return list(known.values())


class _Simulator:
    """Simulates points in this process or others; reads finished points from their runs."""

    def __init__(self, plan: SearchPlan, folder: Path, executor: Executor | None) -> None:
        self._plan, self._folder, self._executor = plan, folder, executor
        self._samples = {"train": plan.train, "test": plan.test}

    def evaluate(
        self,
        numbered: Sequence[tuple[int, Point]],
        side: str,
        what: str,
        done: Done,
        before: int = 0,
        total: int | None = None,
    ) -> list[Evaluated]:
        """Return the results of points on the samples of one side, in the same order."""
        total = len(numbered) if total is None else total
        places = [2 * number + (side == "test") for number, _ in numbered]
        todo = [
            (place, *pair)
            for place, pair in zip(places, numbered, strict=True)
            if not run_folder(self._folder, place).exists()
        ]
        finished = before + len(numbered) - len(todo)
        if numbered:
            done(what, finished, total)
        for place, number, point, runs in self._simulated(todo, side):
            with whole_run(self._folder, place) as folder:
                write_json(folder / "run.json", {
                    "run": place, "point": number, "label": point.label, "on": side,
                    "simulations": runs,
                })  # fmt: skip
            finished += 1
            done(what, finished, total)
        stored = read_runs(self._folder, places)
        for run, (_, point), place in zip(stored, numbered, places, strict=True):
            if run.get("label") != point.label or run.get("on") != side:
                raise UserError(
                    f"{run_folder(self._folder, place)}: not a run of this search; remove it and "
                    "repeat the command"
                )
        return [
            Evaluated(number, point, run["simulations"])
            for (number, point), run in zip(numbered, stored, strict=True)
        ]

    def _simulated(
        self, todo: Sequence[tuple[int, int, Point]], side: str
    ) -> Iterator[tuple[int, int, Point, list[Measured]]]:
        """Yield the results of each point as soon as all of its samples are simulated."""
        samples = self._samples[side]
        if self._executor is None:
            for place, number, point in todo:
                runs = [evaluate(point, sample, self._plan.resume_cost) for sample in samples]
                yield place, number, point, runs
            return
        with signals_held():
            futures = {
                self._executor.submit(_simulate, point, side, i): (k, i)
                for k, (_, _, point) in enumerate(todo)
                for i in range(len(samples))
            }
        found: list[dict[int, Measured]] = [{} for _ in todo]
        try:
            for future in as_completed(futures):
                k, i = futures[future]
                found[k][i] = future.result()
                if len(found[k]) == len(samples):
                    yield *todo[k], [found[k][j] for j in range(len(samples))]
        except BrokenProcessPool:
            raise UserError(
                "a process of this search was killed, perhaps because memory ran out; repeat the "
                "command with fewer --processes to continue"
            ) from None


@contextmanager
def _simulator(plan: SearchPlan, folder: Path, processes: int, ray: str) -> Iterator[_Simulator]:
    workers: AbstractContextManager[Executor | None] = nullcontext()
    if ray:
        workers = ray_cluster(ray, _begin_worker, plan)
    elif processes > 1:
        workers = worker_processes(processes, _begin_worker, plan)
    with workers as executor:
        yield _Simulator(plan, folder, executor)


class _Worker:
    """What a worker process keeps between simulations."""

    plan: SearchPlan


def _begin_worker(plan: SearchPlan) -> None:
    _Worker.plan = plan


def _simulate(point: Point, side: str, number: int) -> Measured:
    plan = _Worker.plan
    sample = (plan.train if side == "train" else plan.test)[number]
    return evaluate(point, sample, plan.resume_cost)
