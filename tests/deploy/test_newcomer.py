"""A newcomer follows the guide, word by word, on a Debian that has just been installed.

`make newcomer`: minutes, as root, with Debian's and Python's registries. `SIA_OLDER` names a commit
to upgrade from.
"""

import os
import re
import subprocess
import time

import pytest

from tests.support.daemons.deployed import DOCS, ROOT, run
from tests.support.servers.machines import machine

pytestmark = pytest.mark.skipif("SIA_NEWCOMER" not in os.environ, reason="make newcomer")

SOURCE = "/root/sia"
TOKEN = "SIA_TOKEN_FILE=/var/lib/sia/token"
OLDER = os.environ.get("SIA_OLDER", "")


def blocks(page, title):
    """What a section of a page has readers type, in order."""
    text = (DOCS / page).read_text()
    section = re.search(rf"(?ms)^## {title}$(.*?)(?=^## |\Z)", text)[1]
    found = re.findall(r"(?ms)^```sh\n(.*?)^```$", section)
    assert found
    return "\n".join(found)


@pytest.fixture(scope="module")
def debian(tmp_path_factory):
    began = time.monotonic()
    with machine(tmp_path_factory.mktemp("newcomer")) as one:
        names = run("git", "ls-files", "-co", "--exclude-standard", cwd=ROOT)[1].split("\n")
        one.copy(ROOT, SOURCE, [name for name in names if (ROOT / name).is_file()])
        print(f"\na Debian that has booted: {time.monotonic() - began:.0f} s")  # noqa: T201  for the record, with -s
        yield one


def phase(debian, job):
    return debian.sh(f"{TOKEN} sia job {job}")


def submit(debian, *words):
    line = f"{TOKEN} sia submit --pool vision --gpus 1 {' '.join(words)}"
    return re.search(r"\bj[0-9a-f]{16}\b", debian.sh(line))[0]


def test_the_guide_is_followed_to_the_first_job(debian):
    began = time.monotonic()
    said = debian.sh(blocks("start/install.md", "One machine"), cwd=SOURCE)
    print(f"from nothing to a job that ran: {time.monotonic() - began:.0f} s")  # noqa: T201  for the record, with -s
    assert re.search(r"\nj\w+ finished\n", said), said
    assert debian.sh("systemctl is-active sia").strip() == "active"
    assert "/sia.service.d/local.conf" in debian.sh("systemctl show -p DropInPaths sia")
    assert "token" in debian.sh(f"cat {SOURCE}/ann.token; echo token")
    assert debian.sh("find / -xdev -user sia -not -path '/proc/*' -not -path '/var/lib/sia*'") == ""


def test_jobs_run_on_while_it_is_restarted_and_installed_again(debian):
    job = submit(debian, "--time-limit", "10m", "--", "sleep", "600")
    for line in ("systemctl restart sia", f"{SOURCE}/deploy/install.sh install"):
        debian.sh(line)
        assert re.search(r"\bphase +running\b", phase(debian, job)), line
    assert len(debian.sh("ls /opt/sia/releases").split()) == 1
    debian.sh(f"{TOKEN} sia cancel {job}")


def test_an_invalid_configuration_changes_nothing(debian):
    debian.sh("cp -p /etc/sia/sia.toml /root/; echo 'wrong = 1' >>/etc/sia/sia.toml")
    before = debian.sh("readlink /opt/sia/current; systemctl show -p MainPID sia")
    debian.sh(f"echo '# other' >>{SOURCE}/daemon/__init__.py")
    said = debian.sh(f"{SOURCE}/deploy/install.sh install || echo it ended with $?")
    assert "it ended with 2" in said
    assert "wrong" in said
    assert debian.sh("readlink /opt/sia/current; systemctl show -p MainPID sia") == before
    debian.sh(f"cp -p /root/sia.toml /etc/sia/; sed -i '$d' {SOURCE}/daemon/__init__.py")


def test_the_service_runs_after_a_boot(debian):
    done = submit(debian, "--wait", "--", "true")
    debian.halt()
    debian.boot()
    assert debian.sh("systemctl is-active sia").strip() == "active"
    assert re.search(r"\bphase +\w+", phase(debian, done))


def test_a_restored_backup_has_the_state_of_its_moment(debian):
    kept = submit(debian, "--hold", "--", "true")
    said = debian.sh(blocks("operate/upgrade.md", "Backup"))
    assert "whole" in said or "records" in said, said
    later = submit(debian, "--hold", "--", "true")
    debian.sh(blocks("operate/upgrade.md", "Restore"))
    assert "held" in phase(debian, kept)
    assert "there is no job" in debian.sh(f"{TOKEN} sia job {later} || true")


def test_an_older_version_is_upgraded_and_jobs_go_on(debian):
    if not OLDER:
        pytest.skip("SIA_OLDER names no commit")
    old = "/root/older"
    debian.sh(f"systemctl stop sia; rm -rf /var/lib/sia/*; mkdir -p {old}")
    tree = subprocess.run(["git", "archive", OLDER], cwd=ROOT, check=True, capture_output=True)
    (debian.root / "root" / "older.tar").write_bytes(tree.stdout)
    debian.sh(f"tar -xf /root/older.tar -C {old}; rm -rf {old}/deploy; cp -r {SOURCE}/deploy {old}")
    # It says to nobody that it is ready.
    debian.sh("mkdir -p /etc/systemd/system/sia.service.d")
    debian.sh("printf '[Service]\nType=exec\n' >/etc/systemd/system/sia.service.d/older.conf")
    debian.sh(f"{old}/deploy/install.sh install")
    debian.sh(f"until [ -e /var/lib/sia/token ] && {TOKEN} sia jobs; "
              "do sleep 0.2; done")  # fmt: skip
    job = submit(debian, "--time-limit", "10m", "--", "sleep", "600")
    held = submit(debian, "--hold", "--", "true")
    debian.sh("rm /etc/systemd/system/sia.service.d/older.conf")
    began = time.monotonic()
    debian.sh(f"{SOURCE}/deploy/install.sh install")
    print(f"upgraded from {OLDER}: {time.monotonic() - began:.0f} s")  # noqa: T201  for the record, with -s
    assert re.search(r"\bphase +running\b", phase(debian, job))
    assert "held" in phase(debian, held)
    assert len(debian.sh("ls /opt/sia/releases").split()) == 2
    assert "jobs may still run" in debian.sh(
        f"{SOURCE}/deploy/install.sh uninstall --purge || true"
    )
    debian.sh(f"{TOKEN} sia cancel {job}")
    debian.sh('until [ -z "$(ls /var/lib/sia/jobs/alive)" ]; do sleep 0.1; done')


def test_uninstalling_removes_all_files(debian):
    debian.sh(f"{SOURCE}/deploy/install.sh uninstall")
    assert debian.sh("ls -d /opt/sia /usr/local/bin/sia 2>/dev/null || true") == ""
    debian.sh("test -e /var/lib/sia/sia.db && test -e /etc/sia/sia.toml")
    debian.sh(f"{SOURCE}/deploy/install.sh uninstall --purge")
    left = debian.sh("find / -xdev -name '*sia*' -not -path '/root/*' -not -path '/proc/*' "
                     "-not -path '/usr/share/*' -not -path '/usr/lib/*' || true")  # fmt: skip
    assert [line for line in left.split() if re.search(r"/sia\b|sia\.", line)] == []
    assert "sia" not in debian.sh("cut -d: -f1 /etc/passwd").split()
