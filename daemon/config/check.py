"""Checks of a configuration that involve several keys, other files or installed packages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

from cells.layout.spec import Spec
from daemon.config import database
from daemon.config.config import Config, PoolConfig
from daemon.config.mqtt import mqtt_problems
from daemon.config.tls import tls_problems
from daemon.config.webhooks import webhook_problems
from daemon.model.limits import MAX_GRACE
from predictors.catalog import LEARNED, NONE, Choice, loads_class, parse, run_times_class
from replay.cluster.cells_file import NAME, cells_for, checked_places
from replay.logs.trace import PoolTable
from sia.console.errors import UserError
from sia.contract.labels import name_of
from sia.contract.solvers import SolverError, chosen
from sia.limits import LONGEST_WINDOW, MAX_GROUP, MAX_RESUME_COST, MAX_WINDOWS
from sia.model import NEVER_STOPPED
from sia.policies import load, make, names
from sia.wording import DAY, as_typed, counted, did_you_mean, some

USUAL = "sia"
"""Policy with which a forecast is checked if the configured policy is invalid."""

LEAST_RETRAIN = 3600.0
"""Shortest `daemon.retrain`, in seconds: a training takes minutes of a core, and one hour of new
jobs changes a model little."""

LEAST_TICK = 0.01
"""Shortest `daemon.tick`, in seconds: with a shorter one the daemon would only process ticks."""


def problems_of(config: Config, pools: Sequence[str] = ()) -> list[str]:
    """Return one line for each problem: `KEY: WHAT; HOW TO FIX IT`.

    `pools` names all pools of the file, including those whose tables are invalid.
    """
    checks: Sequence[Callable[[Config], Iterator[str]]] = (
        _database, _folders, _policy, _stops, _solver, _forecast, _retrain, _times, _pools, _nodes,
        _webhooks, _limits, _grants, _url,
    )  # fmt: skip
    found = [problem for check in checks for problem in check(config)]
    found += tls_problems(config.tls, config.listen)
    found += mqtt_problems(config.mqtt)
    return [*found, *_twice("pool", pools or [pool.name for pool in config.pools])]


def cells_of(path: Path, pools: Sequence[PoolConfig]) -> Spec:
    """Read a cells file and check it against the pools. Raises UserError."""
    table = PoolTable([pool.pool for pool in pools])
    spec = cells_for(path, table)
    checked_places(path, spec, Path("[[pool]]"), table)
    return spec


def _url(config: Config) -> Iterator[str]:
    for url in filter(None, config.url.split(",")):
        try:
            parts = urlsplit(url.strip())
            usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            yield f"daemon.url: {url!r} is not an address; write one like https://sia.example:8642"


def _database(config: Config) -> Iterator[str]:
    return database.problems_of(config.database)


def _folders(config: Config) -> Iterator[str]:
    """Yield problems of folders that cannot be created because a file has their name."""
    keys = {"state": config.models.parent, "token_file": config.token_file.parent}
    if isinstance(config.database, Path):
        keys["database"] = config.database.parent
        if config.database.is_dir():
            yield f"daemon.database: {config.database} is a folder; name a file"
    seen: set[Path] = set()
    for key, folder in keys.items():
        there = next(each for each in (folder, *folder.parents) if each.exists())
        if not there.is_dir() and there not in seen:
            seen.add(there)
            yield f"daemon.{key}: {there} is a file and not a folder; name a folder"


def _policy(config: Config) -> Iterator[str]:
    able = _able(config)
    if name_of(config.policy) not in names():
        close = did_you_mean(name_of(config.policy), able)
        known = (
            f"see docs/reference/replay.md.{close}" if close else f"use one of {', '.join(able)}"
        )
        yield f"daemon.policy: unknown policy {config.policy!r}; {known}"
        return
    try:
        made = make(config.policy)
    except ValueError as error:
        yield f"daemon.policy: {error}"
        return
    policy = load(config.policy)
    if policy.needs.future:
        yield (
            f"daemon.policy: {config.policy} knows the future and works only in replays; "
            f"use one of {', '.join(able)}"
        )
    elif name_of(config.policy) not in able:
        yield (
            f"daemon.policy: {config.policy} stops and restarts jobs, and this backend cannot; "
            f"use one of {', '.join(able)}"
        )
    elif config.pools and made.queues > (largest := max(pool.quota for pool in config.pools)):
        yield (
            f"daemon.policy: {config.policy} has {made.queues} queues, but the largest pool has "
            f"{counted(largest, 'GPU')}; give fewer sizes, as queues share whole GPUs"
        )
    elif made.for_trials:
        yield from _trials(config, made.for_trials)
    if config.cells is not None and not policy.places:
        placing = ", ".join(name for name in able if load(name).places)
        yield f"daemon.policy: {config.policy} does not support cells; use one of {placing}"


def _trials(config: Config, gpus: int) -> Iterator[str]:
    """Yield why trials on so many GPUs of each sharing group cannot be, if they cannot."""
    if "trials" not in config.backend.can:
        yield f"daemon.policy: {config.policy}: this backend cannot run trials; add profile=0"
        return
    owned: dict[tuple[str, str], int] = {}
    for pool in config.pools:
        group = pool.group, "" if pool.share else pool.name
        owned[group] = owned.get(group, 0) + pool.quota
    least = min(owned.values(), default=gpus + 1)
    if least <= gpus:
        yield (
            f"daemon.policy: {config.policy}: a profiler of {counted(gpus, 'GPU')} leaves nothing "
            f"of the {least:,} of a sharing group; add a smaller capacity=N, or profile=0"
        )


def _stops(config: Config) -> Iterator[str]:
    cost = config.preemptible
    if cost in (None, NEVER_STOPPED):
        return
    if "preempt" not in config.backend.can:
        yield (
            "daemon.preemptible: this backend cannot stop and restart jobs; remove the key, "
            "or set it to never"
        )
    if isinstance(cost, float) and cost > MAX_RESUME_COST:
        yield f"daemon.preemptible: {as_typed(cost)} is too long; use at most 1d, or restart"


def _solver(config: Config) -> Iterator[str]:
    if not config.solver:
        return
    try:
        chosen(config.solver)
    except SolverError as error:
        yield f"daemon.solver: {error}"


def _able(config: Config) -> list[str]:
    """Return the policies that do not need the future and whose stops the backend can carry out."""
    stops = "preempt" in config.backend.can
    needs = {name: load(name).needs for name in names()}
    return [
        name for name, need in needs.items() if not need.future and (stops or not need.preemption)
    ]


def _forecast(config: Config) -> Iterator[str]:
    if config.forecast == NONE:
        return
    policy = _policy_or_usual(config)
    needs = load(policy).needs
    if not (needs.loads or needs.run_times):
        return
    label = f"{name_of(policy)}@{config.forecast}"  # wrong options are named once
    try:
        choice = parse(label, Choice("", "", ""))
    except KeyError as error:
        mend = error.args[0].removeprefix(f"{label!r}: ").replace("sia@", "")
        mend = mend.replace("POLICY@", "")
        yield f"daemon.forecast: invalid forecast {config.forecast!r}; {mend}"
        return
    chosen = (loads_class(choice.forecast), run_times_class(choice.durations))
    for name, predictor in zip(choice[1:3], chosen, strict=True):
        if predictor.replay_only:
            yield f"daemon.forecast: {name} works only in replays; use peaks+survival"
    if choice.load_quantile is not None and config.windows:
        most, reason = chosen[0].quantile_limit(config.windows)
        if choice.load_quantile > most:
            yield (
                f"daemon.forecast: {choice.load_quantile:g} is too high for {choice.forecast}, "
                f"because {reason}; use at most {most:g}"
            )
    if chosen[0].needs_model:
        from replay.forecast.model_folder import require_xgboost  # noqa: PLC0415  importing numpy is slow

        try:
            require_xgboost()
        except UserError as error:
            yield f"daemon.forecast: {error.format_message()}"


def _retrain(config: Config) -> Iterator[str]:
    """Check the training interval.

    A forecast is trained or chosen only if the policy forecasts loads.
    """
    if config.retrain is None:
        return
    policy = name_of(_policy_or_usual(config))
    if config.forecast == NONE or not load(policy).needs.loads:
        why = "nothing is forecast" if config.forecast == NONE else f"{policy} forecasts no loads"
        yield f"daemon.retrain: {why}, so nothing is trained; remove the key"
        return
    try:
        forecast = parse(f"{policy}@{config.forecast}", Choice("", "", "")).forecast
    except KeyError:
        return  # `_forecast` reports it
    if not (loads_class(forecast).needs_model or config.chosen_by_backtest):
        yield f"daemon.retrain: {forecast} trains no model; remove the key, or use {LEARNED}"
    elif config.retrain < LEAST_RETRAIN:
        least = as_typed(LEAST_RETRAIN)
        yield f"daemon.retrain: {as_typed(config.retrain)} is too short; use at least {least}"


def _policy_or_usual(config: Config) -> str:
    return config.policy if name_of(config.policy) in _able(config) else USUAL


def _times(config: Config) -> Iterator[str]:
    windows = config.windows
    if not windows or len(windows) > MAX_WINDOWS or any(a >= b for a, b in pairwise(windows)):
        shown = ", ".join(map(as_typed, windows))
        yield f"daemon.windows: invalid list {shown}; give 1 to {MAX_WINDOWS} ascending times"
    elif windows[-1] > LONGEST_WINDOW:
        longest = as_typed(LONGEST_WINDOW)
        yield f"daemon.windows: {as_typed(windows[-1])} is too long; use at most {longest}"
    if not 0 < config.grace <= MAX_GRACE:
        yield f"daemon.grace: {config.grace:g} s is out of range; use more than 0s and at most 1d"
    if not 0 <= config.resume_cost <= MAX_RESUME_COST:
        most = as_typed(MAX_RESUME_COST)
        yield f"daemon.resume_cost: {config.resume_cost:g} s is out of range; use 0s to {most}"
    if not LEAST_TICK <= config.tick <= DAY:
        yield f"daemon.tick: {config.tick:g} s is out of range; use {LEAST_TICK:g}s to 1d"


def _pools(config: Config) -> Iterator[str]:
    for name in dict.fromkeys(pool.name for pool in config.pools):
        if not name.isprintable() or "/" in name:
            yield f"pool: invalid name {name!r}; use letters, digits, dots and dashes"
    most: Counter[tuple[bool, str]] = Counter()
    for pool in config.pools:
        most[pool.share, pool.group if pool.share else pool.name] += pool.quota
    if most and max(most.values()) > MAX_GROUP:
        yield f"pool: a sharing group owns more than {MAX_GROUP} GPUs; split it with the key group"


def _nodes(config: Config) -> Iterator[str]:
    owned = sum(pool.quota for pool in config.pools)
    if config.nodes and config.cells is not None:
        yield "node: the cells file already defines the nodes; remove [[node]]"
    yield from _twice("node", [node.name for node in config.nodes])
    for name in dict.fromkeys(node.name for node in config.nodes):
        if not NAME.fullmatch(name):
            yield f"node: invalid name {name!r}; use no spaces, commas, colons or semicolons"
    yield from _attributes(config)
    finds = config.backend.finds_nodes
    given = all(node.gpus is not None for node in config.nodes)
    there = sum(node.gpus or 0 for node in config.nodes)
    if config.nodes and there < owned and not finds and given:
        yield (
            f"node: the nodes have {counted(there, 'GPU')} in total, but the pools own {owned:,}; "
            "reduce the quotas or add a node"
        )
    for node in config.nodes:
        if finds and (node.gpus is not None or not node.attributes):
            yield (
                f"node.{node.name}: this backend reads the nodes and their GPUs from its cluster; "
                "give attributes only, or remove [[node]]"
            )
        elif not finds and node.gpus is None:
            yield f"node.{node.name}: gpus is missing; write how many GPUs the node has"
    if finds and config.cells is not None:
        yield "daemon.cells: this backend does not support cells; remove the key"
    yield from config.backend.problems(config)


def _attributes(config: Config) -> Iterator[str]:
    """Check attributes of nodes: only pools of one sharing group can plan by them."""
    for node in config.nodes:
        for attribute in node.attributes:
            word, colon, value = attribute.partition(":")
            if not word or (colon and not value) or not NAME.fullmatch(word + value):
                yield (
                    f"node.{node.name}: {attribute!r} is no attribute; write a word, or a kind and "
                    "a value like rack:r1"
                )
        if len({*node.attributes}) < len(node.attributes):
            yield f"node.{node.name}: an attribute stands twice; remove one"
    groups = {pool.group if pool.share else f"alone {pool.name}" for pool in config.pools}
    if len(groups) > 1 and any(node.attributes for node in config.nodes):
        yield (
            f"node: the pools are of {len(groups)} sharing groups, and attributes do not say whose "
            "a node is; put the pools into one group, or remove attributes"
        )


def _webhooks(config: Config) -> Iterator[str]:
    yield from _twice("webhook", [hook.name for hook in config.webhooks])
    yield from webhook_problems(config.webhooks, frozenset(pool.name for pool in config.pools))


def _limits(config: Config) -> Iterator[str]:
    """Report bursts without a rate, which would have no effect."""
    limits = config.limits
    for key, burst, rate in (
        ("rate", limits.burst, limits.rate),
        ("token_rate", limits.token_burst, limits.token_rate),
    ):
        if burst and not rate:
            name = key.replace("rate", "burst")
            yield f"limits.{name}: has no effect without a rate; add limits.{key} or remove it"
    for pool in config.pools:
        if pool.burst and not (pool.rate or limits.rate):
            yield f"pool {pool.name}: burst: has no effect without a rate; add rate or remove burst"


def _grants(config: Config) -> Iterator[str]:
    """Report grants without effect: for an unknown pool, without a bound, or duplicates."""
    pools = {pool.name for pool in config.pools}
    for (user, pool), times in Counter((each.user, each.pool) for each in config.grants).items():
        whose = f"user {user!r}, pool {pool!r}"
        if times > 1:
            yield f"grant: {times} grants have {whose}; write one with all of their bounds"
        if pool and pool not in pools:
            yield f"grant: there is no pool {pool!r}; use one of {some(sorted(pools))}"
    for each in config.grants:
        if set(each.bounds.values()) == {None}:
            yield (
                f"grant: user {each.user!r}, pool {each.pool!r} bounds nothing; add one of "
                f"{', '.join(each.bounds)}"
            )


def _twice(key: str, names: Sequence[str]) -> Iterator[str]:
    for name, times in Counter(names).items():
        if times > 1:
            yield f"{key}: the name {name!r} is used {times} times; rename all but one"
