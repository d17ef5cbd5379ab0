"""What the tutorial has people type, typed on a real Slurm."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.clusters.slurm import BINARIES, free_ports, missing
from tests.support.paths import ROOT

LAB, LAB_SH = "/srv/sia-lab", ROOT / "deploy/slurm/lab.sh"
LEFT_OUT = ("apt-get", "make setup", "export PATH")
"""What has been done where tests run."""


def blocks():
    """Its commands, by the section that they stand in."""
    text = (ROOT / "docs" / "start/tutorial.md").read_text()
    for section in text.split("\n## ")[1:]:
        title = section.partition("\n")[0]
        for block in re.findall(r"```sh\n(.*?)```", section, re.DOTALL):
            kept = [line for line in block.splitlines() if not line.startswith(LEFT_OUT)]
            yield title, "\n".join(kept)


PHASES = """phases() {
    sia jobs --json | python3 -c 'import json, sys
for job in json.load(sys.stdin)["jobs"]: print(job["id"], job["phase"])'
}"""

UNTIL = (
    '[ "$(squeue -h -t R | wc -l)" = 3 ]',
    "phases | grep -q 'slurm-4 pending'",
    '[ "$(phases | grep -c finished)" = 4 ]',
    "phases | grep -q 'slurm-5 running' && phases | grep -q 'slurm-6 pending'",
)
"""What people see after each line that sleeps; the test waits until it is so."""


def script(folder, port):
    """All of them, one after the other, each told where it begins.

    Jobs take twice as long, so that a slow machine sees them run.
    """
    lines = ["set -e", "set -m", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT", PHASES]
    for number, (_, block) in enumerate(blocks()):
        lines += [f"echo '<<<{number}>>>'", block.replace(LAB, str(folder))]
    text = "\n".join(lines)
    listen = f'state = "state"\nlisten = "127.0.0.1:{port}"'
    assert text.count('state = "state"') == 1
    text = text.replace('state = "state"', listen)
    text = re.sub(r'"sleep (\d+)"', lambda found: f'"sleep {2 * int(found[1])}"', text)
    seen = iter(UNTIL)
    text = re.sub(
        r"^sleep \d+$",
        lambda _: f"until {next(seen)}; do sleep 0.2; done",
        text,
        flags=re.MULTILINE,
    )
    assert next(seen, None) is None, "each is waited for"
    return text


@pytest.mark.long
@pytest.mark.server
@pytest.mark.xdist_group("slurm")
def test_the_tutorial_works_as_written(tmp_path):
    gone = missing()
    if gone and not os.environ.get("CI"):
        pytest.skip(f"no {', '.join(gone)}")
    assert not gone
    port, lab = free_ports(1), tmp_path / "lab"
    tmp_path.chmod(0o755)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:{BINARIES}"
    env = {**os.environ, "PATH": path, "SIA_LAB_PORT": str(free_ports(3))}
    try:
        done = subprocess.run(
            ["bash", "-c", script(lab, port)], cwd=ROOT, env=env, timeout=600, check=False,
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
        )  # fmt: skip
    finally:
        subprocess.run([LAB_SH, "stop", lab], env=env, check=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    said = re.split(r"<<<\d+>>>\n", done.stdout)[1:]
    told = {}
    for (title, _), text in zip(blocks(), said, strict=True):
        told[title[0]] = told.get(title[0], "") + text
    assert re.search(r"vision\*.*n1", told["2"])
    assert re.search(r"^n2 +8 +0 +in", told["3"], re.MULTILINE)
    assert re.search(r"^\d+ speech RUNNING \S+ n2$", told["4"], re.MULTILINE), "a loan"
    assert "Loans: 4 GPUs" in told["4"]
    assert re.search(r"slurm-4 +vision +8 +pending", told["4"])
    assert "slurm-3" in told["4"].rpartition("Loans")[2]
    jobs = dict(re.findall(r"^(slurm-\d+) +vision +\d+ +(\w+)", told["5"], re.MULTILINE))
    assert jobs["slurm-6"] == "pending", "no window is as long as it may run"
    assert not lab.exists()


def test_stopping_a_missing_lab_returns_at_once(tmp_path):
    scancel = tmp_path / "scancel"
    scancel.write_text(f"#!/bin/sh\ntouch {tmp_path / 'asked'}\n")
    scancel.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run([LAB_SH, "stop", tmp_path / "lab"], env=env, check=True)
    assert not (tmp_path / "asked").exists(), "nobody would answer"
