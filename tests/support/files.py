"""Write input files for tests, and read the error line with which a bad file is refused."""

import csv

import pytest

from sia.console.errors import UserError


def written(folder, text, name="log.csv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refusal(read, *files, of=None, **options):
    """Return the error line for a bad file, checked to have the file's name, the problem and a fix.

    The bad file is the first of those given, unless `of` names another.
    """
    path = files[0] if of is None else of
    with pytest.raises(UserError) as caught:
        read(*files, **options)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    problem, _, mend = text.removeprefix(f"{path}: ").rpartition("; ")
    assert problem, f"no fix in: {text}"
    assert mend
    return text


def by_id(trace):
    return {arrival.job.id: arrival for arrival in trace.arrivals}


def tables(folder):
    """Return the rows of each CSV file of a folder as tuples, without the heads, by its name."""
    found = {}
    for path in folder.glob("*.csv"):
        with path.open() as file:
            found[path.stem] = [tuple(row) for row in list(csv.reader(file))[1:]]
    return found
