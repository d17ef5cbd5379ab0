"""Find another installed distribution that has a top-level package with one of SIA's names.

The wheel installs six top-level packages. Some of the names are common: python-daemon installs
`daemon` too, and whichever is installed last overwrites files of the other. Every command makes
this check, so the check reads the records of other distributions only after it has found a clash.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from sia.wording import PRODUCT

NAMES = ("cells", "daemon", "oracle", "predictors", "replay", "sia")
"""Top-level packages that SIA's wheel installs."""


METADATA = re.compile(r"(?P<name>.+?)-[^-]+?(-py3.*)?\.(dist|egg)-info")
"""Name of a folder that describes an installed distribution."""

ROOT = Path(__file__).resolve().parents[2]
"""Folder that contains SIA's packages."""


def clash(path: Sequence[str] | None = None, root: Path = ROOT) -> str | None:
    """Return a message about another distribution with one of SIA's names; None if there is none.

    A distribution that was removed again has deleted SIA's files of that name; the message says so.
    `path` lists the folders to search, by default `sys.path`.
    """
    if gone := [name for name in NAMES if not (root / name / "__init__.py").is_file()]:
        return f"files of the package {gone[0]!r} are missing; install {PRODUCT} again"
    named = sys.path if path is None else path
    folders = list(dict.fromkeys(Path(each).resolve() for each in named))
    suspects = {*_elsewhere(folders, root), *_overwritten(root)}
    for name, owner in _owners(folders) if suspects else ():
        if name in suspects:
            return (
                f"{owner} also installs a package named {name!r}; install {PRODUCT} in an "
                f"environment of its own: pipx install {PRODUCT}"
            )
    return None


def _elsewhere(folders: Sequence[Path], root: Path) -> Iterator[str]:
    """Yield SIA's package names that also exist in a folder other than `root`."""
    for folder in folders:
        for name in NAMES if folder != root else ():
            if (folder / name).is_dir() or (folder / f"{name}.py").is_file():
                yield name


def _overwritten(root: Path) -> Iterator[str]:
    """Yield SIA's package names whose folder holds files missing from SIA's RECORD.

    An editable installation has no RECORD in its source tree, where nothing else is installed.
    """
    record = next((folder / "RECORD" for name, folder in _installed(root) if name == PRODUCT), None)
    files = {} if record is None else dict(map(_file_and_size, _lines(record)))
    if not files:
        return
    known = {tuple(file.split("/")[:2]) for file in files}
    for name in NAMES:
        first = root / name / "__init__.py"
        replaced = str(first.stat().st_size) != files.get(f"{name}/__init__.py")
        inside = (entry.name for entry in (root / name).iterdir())
        if replaced or any(
            (name, entry) not in known for entry in inside if entry != "__pycache__"
        ):
            yield name


def _owners(folders: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Yield each of SIA's package names that another distribution installs, and its owner."""
    for folder in folders:
        for owner, metadata in _installed(folder):
            if owner == PRODUCT:
                continue
            files = _lines(metadata / "top_level.txt") or _lines(metadata / "RECORD")
            found = {re.split(r"/|,|\.py", file)[0] for file in files}
            for name in sorted(found.intersection(NAMES)):
                yield name, owner


def _installed(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the distributions installed in a folder, each with the folder of its metadata."""
    try:
        entries = sorted(folder.iterdir())
    except OSError:  # an entry of sys.path may be missing, or a zip file
        return
    for entry in entries:
        if (found := METADATA.fullmatch(entry.name)) is not None:
            yield re.sub(r"[-_.]+", "-", found["name"]).lower(), entry


def _file_and_size(line: str) -> tuple[str, str]:
    """Return the first and the last column of a line of RECORD: file, checksum, size."""
    file, _, rest = line.partition(",")
    return file, rest.rpartition(",")[2]


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
