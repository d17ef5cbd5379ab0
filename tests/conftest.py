"""Shared fixtures: real servers, real logs, the external checker; skips if one is missing."""

import gc
import importlib.util
import os
import signal
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from tests.support.budget import SOAK, budget
from tests.support.characters import know_utf_8
from tests.support.clusters.slurm import NEEDED, slurm_cluster
from tests.support.daemons.forked import BEGUN
from tests.support.forecasting import of_few_trees
from tests.support.pictures import blank_pictures
from tests.support.servers.servers import mosquitto, needs, postgres_server

TESTS = Path(__file__).resolve().parent
SHARED = TESTS.parent.parent / "shared"
TRACES = Path(os.environ.get("SIA_TRACES", SHARED / "traces"))
CHECKER = Path(os.environ.get("SIA_CHECKER", SHARED / "tools" / "check_schedule.py"))


# No test trusts a public certificate authority, and a process loads them as it imports aiohttp.
os.environ["SSL_CERT_FILE"] = os.devnull

# No test sees the state of the user who runs it, such as the database of an older daemon.
STATE = TemporaryDirectory(prefix="sia-state-")
os.environ["XDG_STATE_HOME"] = STATE.name

settings.register_profile(
    "suite", max_examples=budget(ci=30, soak=1000), deadline=None, derandomize=True
)
settings.load_profile("suite")
know_utf_8()
if not SOAK:
    # Hypothesis also draws numbers and texts from the source of every module of the project that
    # the process has imported. Here these are thousands: a draw can take a millisecond, and the
    # examples of a property depend on what other tests have imported.
    providers._get_local_constants = lambda: providers._local_constants


def pytest_configure(config):
    # A shell starts background commands with SIGINT ignored, and child processes inherit this.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(NothingSkipped(), "nothing-skipped")
    if hasattr(config, "workerinput") and config.args_source is config.ArgsSource.TESTPATHS:
        config.args = rotated_files(config.workerinput)


def rotated_files(worker):
    """Return all test files; each process of xdist starts at another one.

    Each process imports all of them. In a fresh clone this compiles them, and a file that
    another process has compiled already is only loaded.
    """
    files = sorted(str(file) for file in TESTS.rglob("test_*.py"))
    start = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    return files[start:] + files[:start]


def pytest_collection_finish():
    """Exclude the thousands of collected items from later garbage collections."""
    gc.collect()
    gc.freeze()


class NothingSkipped:
    """With `CI` set, a test whose server is missing fails instead of being skipped."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if item.get_closest_marker("server") and "xfail" not in item.keywords:
            fail_skipped(report)
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector):
        """Fail a whole file that skips itself in CI: its tests are not collected one by one."""
        report = yield
        if collector.config.option.markexpr == "server":
            fail_skipped(report)
        return report


def fail_skipped(report):
    if report.skipped and os.environ.get("CI"):
        report.outcome = "failed"
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.longrepr = f"skipped, which CI does not allow: {why}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One folder for all examples of a hypothesis property, which share function fixtures."""
    return tmp_path_factory.mktemp("examples")


@pytest.fixture(scope="module")
def few_trees():
    """Models of a few trees each, for tests that do not check the quality of forecasts."""
    with of_few_trees():
        yield


@pytest.fixture(name="blank_pictures", scope="module")
def pictures_are_blank():
    """Pictures of this file's reports are blank, as nothing here looks at them."""
    with blank_pictures():
        yield


@pytest.fixture
def leaves_nothing(monkeypatch):
    """End the processes that a test has started, also if it fails."""
    begun, already = [], len(BEGUN)

    class Process(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            begun.append(self)

    monkeypatch.setattr(subprocess, "Popen", Process)
    yield
    for process in begun + BEGUN[already:]:
        if process.poll() is None:
            process.kill()
            process.communicate()


@pytest.fixture(scope="session")
def postgres():
    """One PostgreSQL for all tests of a process; each takes a `postgres.database(name)`.

    Its data are not below pytest's folders: another run of pytest makes those private to its user.
    """
    with TemporaryDirectory(prefix="postgres-") as folder, postgres_server(Path(folder)) as server:
        yield server


@pytest.fixture
def broker(tmp_path):
    """A mosquitto on the loopback interface without passwords."""
    with mosquitto(tmp_path) as server:
        yield server


@pytest.fixture(scope="session")
def slurm_server():
    """One Slurm for all tests of a process: four nodes of eight GPUs, three partitions.

    Its folder is not below pytest's folders, which are private: jobs run as the user nobody.
    """
    needs(*NEEDED)
    with TemporaryDirectory(prefix="sia-slurm-") as folder, slurm_cluster(folder) as cluster:
        yield cluster


@pytest.fixture
def slurm(slurm_server):
    """The same Slurm, without jobs and with all nodes up."""
    slurm_server.fresh()
    return slurm_server


SERVERS = frozenset(("postgres", "broker", "slurm", "devtools"))
"""Fixtures that mark a test as `server`, for `make servers`."""


ONE_OF_EACH = ("slurm_server", "postgres", "devtools")
"""Fixtures that exist once in a run: all tests with one of them run in the same process, because
two servers of each kind overload two cores."""


@pytest.hookimpl(tryfirst=True)  # before xdist derives group names from the marks
def pytest_collection_modifyitems(items):
    for item in items:
        group = next((name for name in ONE_OF_EACH if name in item.fixturenames), None)
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))
        if SERVERS & set(item.fixturenames):
            item.add_marker(pytest.mark.server)
    # the longest first: at the end, one process would run it while the others have nothing to do;
    # by path, because xdist demands the same order in all processes
    items.sort(key=lambda item: (item.get_closest_marker("long") is None, item.path.parts))


@pytest.fixture(scope="session")
def traces() -> Path:
    if not TRACES.is_dir():
        pytest.skip(f"no real logs in {TRACES}: set SIA_TRACES")
    return TRACES


@pytest.fixture(scope="session")
def checker():
    """The external checker, which reads result files and shares no code with the project."""
    if not CHECKER.is_file():
        pytest.skip(f"no checker at {CHECKER}: set SIA_CHECKER")
    spec = importlib.util.spec_from_file_location("check_schedule", CHECKER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def check(trace, pools, folder, policy, warmup=0.0, *, places=False):
        """Return the (violations, measures) of one policy's results."""
        segments = folder / "segments.csv"
        return module.check(
            SimpleNamespace(
                trace=str(trace),
                pools=str(pools),
                jobs=str(folder / "jobs.csv"),
                loans=str(folder / "loans.csv"),
                policy=policy,
                warmup=warmup,
                segments=str(segments) if segments.exists() else None,
                require_nodes=places,
            )
        )

    return check
