"""The service: its unit is well formed, shut as far as can be, and its command line serves."""

import os
import re
import shutil
import urllib.request
from contextlib import ExitStack

import pytest

from daemon.runtime.sd_notify import ready
from tests.support.daemons.deployed import (
    DEPLOY,
    DOCS,
    INSTALLED,
    command_of,
    manager,
    run,
    service,
    unit,
)
from tests.support.files import written
from tests.support.servers.servers import free_port, needs

UNIT = DEPLOY / "systemd" / "sia.service"
DROP_IN = DEPLOY / "systemd" / "local.conf"

MOST_EXPOSED = 2.0


def exposure(path):
    """What `systemd-analyze security` says of a unit: 0 is a fortress, 10 an open field."""
    _, said = run("systemd-analyze", "security", "--offline=true", "--no-pager", path)
    return float(re.search(r"exposure level for \S+: ([0-9.]+)", said)[1])


@pytest.mark.server
def test_the_units_are_well_formed(tmp_path):
    needs("systemd-analyze")
    for path in DEPLOY.rglob("*.service"):
        text = path.read_text().replace(INSTALLED, "/bin/true").replace("User=sia", "User=root")
        copy = written(tmp_path, text, path.name)
        assert run("systemd-analyze", "verify", copy) == (0, ""), path
    for path in DEPLOY.rglob("*.service"):
        assert INSTALLED in path.read_text() or "slurmrestd" in path.name


@pytest.mark.server
def test_the_service_is_sandboxed_as_far_as_possible(tmp_path):
    needs("systemd-analyze")
    for path in DEPLOY.rglob("*.service"):
        assert exposure(path) <= MOST_EXPOSED, path
    shutil.copy(UNIT, tmp_path)
    shut = exposure(tmp_path / UNIT.name)
    (tmp_path / "sia.service.d").mkdir()
    shutil.copy(DROP_IN, tmp_path / "sia.service.d")
    opened = exposure(tmp_path / UNIT.name)
    said = (DOCS / "start/install.md").read_text()
    assert f"gives the unit {shut:g} " in said
    assert f"and it is {opened:g}." in said


def test_jobs_outlive_the_service():
    assert unit(UNIT)["Service"]["KillMode"] == ["process"]
    opened = unit(DROP_IN)["Service"]
    assert opened["PrivateTmp"] == opened["RemoveIPC"] == ["no"]


def test_the_units_command_line_serves_and_says_so(tmp_path):
    port = free_port()
    text = f'[daemon]\nstate = "state"\nlisten = "127.0.0.1:{port}"\nestimates = false\n'
    text += '[[pool]]\nname = "vision"\nquota = 1\n'
    config = written(tmp_path, text, "sia.toml")
    with service(tmp_path, command_of(UNIT, config)) as (process, said):
        assert said == f"READY=1\nSTATUS=serving on http://127.0.0.1:{port}\n"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz") as answer:
            assert answer.status == 200
    assert process.returncode == 0


def test_a_stand_by_is_ready_too(tmp_path, postgres):
    url = postgres.database("ready")
    heard = []
    with ExitStack() as both:
        for name in ("first", "second"):
            folder = tmp_path / name
            folder.mkdir()
            text = f'[daemon]\nstate = "."\nlisten = "127.0.0.1:0"\ndatabase = "{url}"\n'
            text += '[[pool]]\nname = "vision"\nquota = 1\n'
            config = written(folder, text, "sia.toml")
            heard.append(both.enter_context(service(folder, command_of(UNIT, config)))[1])
    assert heard[0].startswith("READY=1\nSTATUS=serving on http://127.0.0.1:")
    assert heard[1] == "READY=1\nSTATUS=stand-by\n"


def test_a_service_manager_with_an_abstract_socket_is_notified(tmp_path, monkeypatch):
    name = f"@sia-test-{os.getpid()}-{tmp_path.name}"
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    with manager(name) as heard:
        ready("stand-by")
        assert heard() == "READY=1\nSTATUS=stand-by\n"


@pytest.mark.parametrize("path", ["", "relative", "/nobody/listens"])
def test_without_a_service_manager_the_start_is_not_delayed(path, monkeypatch):
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    ready("serving")


@pytest.mark.server
def test_shellcheck_finds_nothing_in_the_install_script():
    needs("shellcheck")
    for path in DEPLOY.rglob("*.sh"):
        assert run("shellcheck", path) == (0, "")


@pytest.fixture
def installed(tmp_path):
    """Units that an installation leaves where a configuration is there already, in a folder."""
    script = (DEPLOY / "install.sh").read_text().partition('\ncd "$(dirname')[0]
    assert "install_units() {" in script
    for name in ("CONFIG", "UNITS", "DROP_IN"):
        script, count = re.subn(rf"(?m)^{name}=.*$", f"{name}='{tmp_path / name}'", script)
        assert count == 1, name

    def install(config):
        written(tmp_path, config, "CONFIG")
        assert run("sh", "-c", f"{script}\ninstall_units", cwd=DEPLOY.parent)[0] == 0
        units = tmp_path / "UNITS"
        return {str(path.relative_to(units)) for path in units.rglob("*") if path.is_file()}

    return install


def test_an_installation_has_the_units_of_its_backend_whoever_wrote_the_configuration(
    installed, tmp_path
):
    slurm = (DEPLOY / "config" / "slurm.toml").read_text()
    local = (DEPLOY / "config" / "workstation.toml").read_text()
    assert installed(slurm) == {"sia.service", "sia-slurmrestd.service"}
    shutil.rmtree(tmp_path / "UNITS")  # uninstalled, and the configuration left
    assert installed(slurm) == {"sia.service", "sia-slurmrestd.service"}
    shutil.rmtree(tmp_path / "UNITS")
    assert installed(local) == {"sia.service", "sia.service.d/local.conf"}
    for none in ("[backend\n", "backend = 'local'"):
        assert installed(none) == {"sia.service", "sia.service.d/local.conf"}, "as it was"
    for other in ("", "[backend]\nkind = 'mqtt'"):
        assert installed(local) != installed(other) == {"sia.service"}, other


def test_an_installation_replaces_older_units(installed, tmp_path):
    local = (DEPLOY / "config" / "workstation.toml").read_text()
    names = installed(local)
    for name in names:
        (tmp_path / "UNITS" / name).write_text("[Service]\n# of an older version\n")
    assert installed(local) == names
    assert (tmp_path / "UNITS" / UNIT.name).read_bytes() == UNIT.read_bytes()
    there = tmp_path / "UNITS" / "sia.service.d" / DROP_IN.name
    assert there.read_bytes() == DROP_IN.read_bytes()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Usage: deploy/install.sh install"),
        (["upgrade"], "Usage: deploy/install.sh install"),
        (["install", "mainframe"], "no example mainframe; use workstation or slurm"),
        (["install", "../../docs"], "no example"),
    ],
)
def test_the_install_script_explains_its_arguments(words, said):
    code, heard = run(DEPLOY / "install.sh", *words)
    assert code == 2
    assert said in heard
