"""Another distribution that brings a package of our names is named before anything goes wrong."""

import shutil
from pathlib import Path

import pytest

from sia.console import main as console
from sia.console.neighbours import NAMES, clash
from tests.support.shell import sia

FIX = "install sia-scheduler in an environment of its own: pipx install sia-scheduler"


def installed(site: Path, distribution: str, files: dict[str, str], top_level: str = "") -> None:
    """Install files as a wheel does, with a record of them."""
    metadata = site / f"{distribution}-1.0.dist-info"
    metadata.mkdir(parents=True)
    for name, text in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    rows = [f"{name},sha256=x,{len(text)}" for name, text in files.items()]
    (metadata / "RECORD").write_text("\n".join([*rows, f"{metadata.name}/RECORD,,"]))
    if top_level:
        (metadata / "top_level.txt").write_text(f"{top_level}\n")


def ours(site: Path) -> Path:
    files = {f"{name}/__init__.py": f'"""Our {name}."""\n' for name in NAMES}
    installed(site, "sia_scheduler", {**files, "daemon/engine/core.py": "x = 1\n"})
    return site


def theirs(site: Path, top_level: str = "daemon") -> None:
    files = {"daemon/__init__.py": "from .daemon import *\n", "daemon/daemon.py": "y = 2\n"}
    installed(site, "python_daemon", files, top_level)


def found(*sites: Path) -> str | None:
    return clash([str(site) for site in sites], sites[-1])


def test_an_environment_without_other_packages_is_accepted(tmp_path):
    site = ours(tmp_path / "site")
    installed(site, "numpy", {"numpy/__init__.py": ""}, "numpy")
    assert found(tmp_path / "missing", site) is None


@pytest.mark.parametrize("top_level", ["daemon", ""])
@pytest.mark.parametrize("install", [(theirs, ours), (ours, theirs)])
def test_another_package_with_one_of_our_names_in_the_same_folder_is_found(
    tmp_path, install, top_level
):
    for each in install:
        each(tmp_path) if each is ours else theirs(tmp_path, top_level)
    said = f"python-daemon also installs a package named 'daemon'; {FIX}"
    assert found(tmp_path) == said


def test_a_single_file_of_the_same_name_is_found(tmp_path):
    ours(tmp_path)
    installed(tmp_path, "cells", {"cells/__init__.py": "another = True\n"})
    assert found(tmp_path) == f"cells also installs a package named 'cells'; {FIX}"


def test_another_package_before_an_editable_installation_is_found(tmp_path):
    tree = tmp_path / "tree"
    for name in NAMES:
        (tree / name).mkdir(parents=True)
        (tree / name / "__init__.py").touch()
    theirs(tmp_path / "site")
    said = f"python-daemon also installs a package named 'daemon'; {FIX}"
    assert found(tmp_path / "site", tree) == said


def test_files_that_no_distribution_has_installed_are_no_clash(tmp_path):
    site = ours(tmp_path / "site")
    (site / "daemon" / "notes.txt").touch()
    (tmp_path / "work" / "replay").mkdir(parents=True)
    assert found(tmp_path / "work", site) is None


def test_files_that_were_removed_with_another_distribution_are_reported(tmp_path):
    theirs(tmp_path)
    ours(tmp_path)
    shutil.rmtree(tmp_path / "python_daemon-1.0.dist-info")
    (tmp_path / "daemon" / "__init__.py").unlink()
    said = "files of the package 'daemon' are missing; install sia-scheduler again"
    assert found(tmp_path) == said


def test_the_command_line_does_not_start(monkeypatch):
    monkeypatch.setattr(console, "clash", lambda: "python-daemon also installs")
    done = sia("--version")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "sia: python-daemon also installs\n"
