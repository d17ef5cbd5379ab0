"""Simulate on a Ray cluster instead of in processes of this machine (extra `ray`).

The results are the same. Every machine of the cluster needs this package in the same version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any

from sia.console.errors import UserError
from sia.wording import install_extra

LOCAL = "local"
"""The address that starts a cluster on this machine for the duration of the search."""


class RayExecutor(Executor):
    """Runs functions as tasks of Ray. `begin` and its arguments are sent to a machine once."""

    def __init__(self, ray: Any, begin: Callable[..., None], *args: Any) -> None:
        """Have each process of the cluster call `begin` with `args` before its first task."""
        self._given = [ray.put((begin, args))]  # in a list, Ray does not fetch it per task
        self._task = ray.remote(_run).options(max_retries=0)
        self._get = ray.get

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submit a function to the cluster."""
        task: Future[Any] = self._task.remote(self._given, self._get, fn, args, kwargs).future()
        return task


class _Begun:
    """The `begin` that this process of the cluster has called."""

    key = ""


def _run(
    given: Sequence[Any], get: Callable[[Any], Any], fn: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    key = given[0].hex()
    if _Begun.key != key:
        begin, begun = get(given[0])
        begin(*begun)
        _Begun.key = key
    return fn(*args, **kwargs)


@contextmanager
def ray_cluster(address: str, begin: Callable[..., None], *args: Any) -> Iterator[Executor]:
    """Yield an executor on the Ray cluster at this address. Raises UserError.

    Each process of the cluster calls `begin` with `args` before its first function.
    """
    try:
        import ray  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415  an extra
    except ImportError:
        raise UserError(f"--ray needs the package ray; {install_extra('ray')}") from None
    try:
        ray.init(None if address == LOCAL else address, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        why = str(error).partition("\n")[0].rstrip(".")
        raise UserError(
            f"--ray {address}: cannot be reached ({why}); give the address of its head, like "
            f"10.0.0.1:6379, or {LOCAL}"
        ) from None
    try:
        yield RayExecutor(ray, begin, *args)
    finally:
        ray.shutdown()
