"""Rules of the folders: few entries, a line that says what a package is, unique class names."""

import ast
import itertools
from collections import defaultdict
from graphlib import TopologicalSorter

import pytest

from tests.support.paths import ROOT

ROOMS = ("cells", "sia", "predictors", "replay", "oracle", "daemon")
MOST_ENTRIES = 15
"""Entries that a folder shows, `__init__.py` left out: as many as a reader takes in at a glance."""


def shown(folder):
    """The entries of a folder that a reader sees."""
    hidden = {"__init__.py", "__pycache__"}
    return [
        path for path in folder.iterdir()
        if path.name not in hidden and (path.is_file() or any(path.rglob("*.*")))
        and not (path.is_dir() and all(file.suffix == ".pyc" for file in path.rglob("*.*")))
    ]  # fmt: skip


def folders():
    for room in ROOMS:
        yield ROOT / room
        below = (ROOT / room).rglob("*")
        yield from (
            path for path in below if path.is_dir() and path.name != "__pycache__" and shown(path)
        )


def modules():
    return itertools.chain.from_iterable((ROOT / room).rglob("*.py") for room in ROOMS)


def test_no_folder_has_more_than_15_entries():
    crowded = {str(path.relative_to(ROOT)): len(shown(path)) for path in folders()}
    assert not {name: count for name, count in crowded.items() if count > MOST_ENTRIES}


@pytest.mark.parametrize("room", ROOMS)
def test_each_package_docstring_begins_with_a_sentence(room):
    packages = {path.parent for path in (ROOT / room).rglob("*.py")}
    for package in sorted(packages):
        said = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
        assert said.partition("\n")[0].endswith("."), package


def test_no_public_class_name_stands_in_two_files():
    where = defaultdict(set)
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].add(str(path.relative_to(ROOT)))
    assert not {name: paths for name, paths in where.items() if len(paths) > 1}


def imports():
    """The modules that each module imports, also within functions and for type checks alone."""
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in modules()}
    graph = {name: set() for name in paths}
    for name, path in paths.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [each.name for each in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
            else:
                continue
            found = {each for one in names for each in (one, f"{one}.__init__")}
            graph[name] |= found & paths.keys() - {name}
    return graph


def test_no_modules_import_each_other_not_even_within_functions():
    TopologicalSorter(imports()).prepare()
