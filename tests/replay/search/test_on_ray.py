"""`sia wfq search --ray`: the same bytes as in processes here, and one line where Ray is missing.

A stand-in for Ray runs each task at once, in this process, with what was put into its store.
"""

import sys
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from replay.cli.wfq import wfq
from replay.search.on_ray import _Begun
from tests.support.shell import digests

LOG = "job_id,pool,submit,width,duration\n" + "".join(
    f"j{i},a,{60 * i},{1 + i % 4},{30 * (1 + i % 7) ** 2}\n" for i in range(60)
)


class Ref:
    """What Ray gives for an object in its store or for a task."""

    def __init__(self, value):
        self.value = value

    def hex(self):
        return str(id(self))

    def future(self):
        found = Future()
        found.set_result(self.value)
        return found


class Ray:
    """A cluster of one process, as far as a search uses it."""

    def __init__(self, *, reachable=True):
        self.reachable, self.stored, self.tasks, self.ended = reachable, 0, 0, False

    def init(self, address, **_):
        self.address = address
        if not self.reachable:
            raise ConnectionError(f"Could not find any running Ray instance at {address}.\nSee")

    def put(self, value):
        self.stored += 1
        return Ref(value)

    def get(self, ref):
        return ref.value

    def remote(self, function):
        def run(*args):
            self.tasks += 1
            return Ref(function(*args))

        task = SimpleNamespace(remote=run)
        task.options = lambda **_: task
        return task

    def shutdown(self):
        self.ended = True


@pytest.fixture
def searched(tmp_path):
    """Search with more options; return exit code, last line of the output and the folder."""
    log = tmp_path / "log.csv"
    log.write_text(LOG)

    def search(name, *more):
        out = tmp_path / name
        words = ["search", "--trace", log, "--gpus", 4, "--arrivals", 30, "--samples", 2]
        words += ["--simulations", 16, "--out", out, *more]
        done = CliRunner().invoke(wfq, [*map(str, words)], standalone_mode=False)
        return done, out

    return search


def test_a_search_on_ray_gives_the_same_bytes(searched, monkeypatch):
    ray = Ray()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(_Begun, "key", "")
    done, on_ray = searched("ray", "--ray", "10.0.0.1:6379")
    assert done.exit_code == 0, done.output
    assert (ray.address, ray.stored, ray.ended) == ("10.0.0.1:6379", 1, True)
    assert ray.tasks >= 16
    done, here = searched("here", "--processes", "1")
    assert done.exit_code == 0
    assert digests(on_ray) == digests(here)


@pytest.mark.parametrize(
    ("ray", "more", "said"),
    [
        (None, (), "--ray needs the package ray; "),
        (Ray(reachable=False), (), "cannot be reached (Could not find any running Ray instance"),
        (Ray(), ("--processes", "2"), "--ray takes the place of --processes"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_refused_in_one_line(
    searched, monkeypatch, ray, more, said
):
    monkeypatch.setitem(sys.modules, "ray", ray)
    done, _ = searched("out", "--ray", "10.0.0.1:6379", *more)
    assert said in str(done.exception)
    assert "\n" not in str(done.exception)
