"""Rules of the folders: few entries, a line that says what a package is, unique class names."""

import ast
import itertools
from collections import defaultdict
from functools import cache
from graphlib import TopologicalSorter
from typing import NamedTuple

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.xdist_group("house")  # in one process, which parses each module once

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


class ModuleFacts(NamedTuple):
    """What is looked at in a module."""

    docstring: str
    classes: list[str]
    imports: set[str]


@cache
def modules():
    """What each module says, by its path: each is parsed once."""
    paths = itertools.chain.from_iterable((ROOT / room).rglob("*.py") for room in ROOMS)
    return {path: facts(ast.parse(path.read_text())) for path in paths}


def facts(tree):
    """The names of its classes and what it imports, also within functions and for type checks."""
    classes, imports = [], set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            classes.append(node.name)
        elif isinstance(node, ast.Import):
            imports |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            imports |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    return ModuleFacts(ast.get_docstring(tree) or "", classes, imports)


def test_no_folder_has_more_than_15_entries():
    benchmarks = [ROOT / "benchmarks", *{path.parent for path in ROOT.glob("benchmarks/*/*.py")}]
    crowded = {str(path.relative_to(ROOT)): len(shown(path)) for path in [*folders(), *benchmarks]}
    assert not {name: count for name, count in crowded.items() if count > MOST_ENTRIES}


@pytest.mark.parametrize("room", ROOMS)
def test_each_package_docstring_begins_with_a_sentence(room):
    packages = {path.parent for path in modules() if path.is_relative_to(ROOT / room)}
    for package in sorted(packages):
        said = modules()[package / "__init__.py"].docstring
        assert said.partition("\n")[0].endswith("."), package


def test_no_public_class_name_stands_in_two_files():
    where = defaultdict(set)
    for path, module in modules().items():
        for name in module.classes:
            if not name.startswith("_"):
                where[name].add(str(path.relative_to(ROOT)))
    assert not {name: paths for name, paths in where.items() if len(paths) > 1}


def imports():
    """The modules that each module imports."""
    names = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): module.imports
        for path, module in modules().items()
    }
    return {
        name: {each for one in imported for each in (one, f"{one}.__init__")} & names.keys()
        - {name}
        for name, imported in names.items()
    }  # fmt: skip


def test_no_modules_import_each_other_not_even_within_functions():
    TopologicalSorter(imports()).prepare()
