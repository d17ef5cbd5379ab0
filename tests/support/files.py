"""Files for the tests of what is read, and how a bad one is refused."""

import pytest

from sia.console.errors import UserError


def written(folder, text, name="log.csv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refusal(read, *files, of=None, **options):
    """The one line that says what is wrong with a file: its name, the problem, the mend.

    The file is the first of those that are read, if `of` does not name another.
    """
    path = files[0] if of is None else of
    with pytest.raises(UserError) as caught:
        read(*files, **options)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    problem, _, mend = text.removeprefix(f"{path}: ").rpartition("; ")
    assert problem, f"no mend in: {text}"
    assert mend
    return text


def by_id(trace):
    return {arrival.job.id: arrival for arrival in trace.arrivals}
