"""Decode JSON bodies: one value, or a batch of jobs element by element.

`msgspec` decodes and validates. Python's own scanner reads each value as well, because only the
scanner detects duplicate keys and can read one list element at a time. A large batch is decoded in
pieces, so that the event loop serves other clients in between. Only invalid elements are examined a
second time, to name every wrong value.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Generator
from json import JSONDecodeError, JSONDecoder
from typing import Any, TypeVar

import msgspec

from daemon.config.validation import ConfigProblem, Path, read
from daemon.wire.jobs import MAX_JOBS, FieldProblem, JobRequest
from daemon.wire.limits import MAX_OBJECTS, MAX_PROBLEMS, MAX_VALUE, PIECE_CHARACTERS, PIECE_JOBS
from daemon.wire.problems import ProblemError

T = TypeVar("T")
Job = TypeVar("Job", bound=JobRequest)

Pieces = Generator[None, None, T]
"""A generator that yields after each piece of work and returns the result."""

_BATCH = re.compile(r'[ \t\r\n]*\{[ \t\r\n]*"jobs"[ \t\r\n]*:[ \t\r\n]*\[[ \t\r\n]*')
_SPACE = re.compile(r"[ \t\r\n]*")
_NEXT = re.compile(r"[ \t\r\n]*(,|\])[ \t\r\n]*")
_END = re.compile(r"[ \t\r\n]*\}[ \t\r\n]*\Z")

_LONGEST_INTEGER = 400
"""Number of digits from which an integer stays a string: Python refuses to convert more than
4,300."""


class _TwiceError(Exception):
    """A key occurs twice in one object."""


class _TooManyError(Exception):
    """A value has more than `MAX_OBJECTS` objects, or a list or object of more members."""


class _Objects:
    """Object hook of the scanner: build each object, count them and reject duplicate keys."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        self.count += 1
        if self.count > MAX_OBJECTS or len(pairs) > MAX_OBJECTS:
            raise _TooManyError
        found = dict(pairs)
        if len(found) != len(pairs):
            left = set(found)
            for key, _ in pairs:
                if key not in left:
                    raise _TwiceError(key)
                left.remove(key)
        return found


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) < _LONGEST_INTEGER else digits


def _constant(name: str) -> float:
    raise ValueError(f"{name} is not valid JSON")


_objects = _Objects()
_scan: Any = JSONDecoder(
    object_pairs_hook=_objects, parse_int=_integer, parse_constant=_constant
).scan_once  # type: ignore[attr-defined]  # missing in typeshed


def _scanned(text: str, at: int) -> tuple[Any, int]:
    """Return the value that starts at an offset, and its end. Raises the scanner's exceptions."""
    _objects.count = 0
    found: tuple[Any, int] = _scan(text, at)
    _check_lists(found[0])
    return found


def _check_lists(value: Any) -> None:
    """Raise _TooManyError if a value contains a list of more than `MAX_OBJECTS` members.

    Decoding checks the pattern of each member before it counts them, which takes long.
    """
    open_values = [value]
    while open_values:
        value = open_values.pop()
        if isinstance(value, dict):
            open_values.extend(value.values())
        elif isinstance(value, list):
            if len(value) > MAX_OBJECTS:
                raise _TooManyError
            open_values.extend(value)


def decoded(
    body: bytes, decoder: msgspec.json.Decoder[T], kind: type[Any], see: str = "/v1/openapi.json"
) -> T:
    """Decode and validate a body. Raises ProblemError with up to `MAX_PROBLEMS` wrong values.

    `kind` is the type to validate against; `see` is the document that the error points to.
    """
    if len(body) > MAX_VALUE:
        raise _TOO_LARGE
    text = _text(body)
    problems: list[ConfigProblem] = []
    try:
        values, end = _scanned(text, _space(text, 0))
        if _space(text, end) != len(text):
            raise _no_json("unexpected data after the value")
        found = _right(text, values, decoder, kind, (), problems)
    except StopIteration as error:
        raise _no_json(f"truncated or invalid JSON at character {error.value}") from None
    except (ValueError, RecursionError, _TwiceError, _TooManyError) as error:
        raise _unread(error, "") from None
    if found is None:
        raise _invalid(problems, see)
    return found


def is_batch(body: bytes) -> bool:
    """Return whether a body looks like a batch: an object whose first key is `jobs`."""
    return body.lstrip()[1:].lstrip().startswith(b'"jobs"')


def read_batch(
    body: bytes,
    decoder: msgspec.json.Decoder[Job],
    kind: type[Job],
    whole: type[Any],
    see: str = "/v1/openapi.json",
) -> Pieces[list[Job]]:
    """Decode `{"jobs": [...]}` in pieces; `kind` is the type of a job, `whole` of the body.

    Raises ProblemError as `decoded` does, and if there are more than `MAX_JOBS` jobs. Decoding
    stops at the first job above the limit and after `MAX_PROBLEMS` wrong values.
    """
    text = _text(body)
    begin = _BATCH.match(text)
    if begin is None or text.startswith("]", begin.end()):
        return decoded(body, msgspec.json.Decoder(whole), whole, see).jobs  # type: ignore[no-any-return]
    jobs: list[Job] = []
    problems: list[ConfigProblem] = []
    count, number, piece, at = 0, 0, begin.end(), begin.end()
    elements = _Elements(text)
    more = True
    while more and len(problems) < MAX_PROBLEMS:
        values, end = elements.at(at, number)
        job = _right(text[at:end], values, decoder, kind, ("jobs", number), problems)
        number += 1
        count += 1 if job is None else job.array or 1
        if count > MAX_JOBS:
            raise TOO_MANY
        if job is not None:
            jobs.append(job)
        after = _NEXT.match(text, end)
        if after is None:
            raise _no_json(f"missing comma or ] after job {number - 1} of the batch")
        more, at = after[1] == ",", after.end()
        if not number % PIECE_JOBS or at - piece > PIECE_CHARACTERS:
            piece = at
            yield
    if problems:
        raise _invalid(problems, see)
    if _END.match(text, at) is None:
        raise _after(text, at)
    return jobs


class _Elements:
    """Iterate over the elements of a JSON list by offset.

    The scanner gets a window of `MAX_VALUE` characters, which bounds the time for one element.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._from, self._window = 0, text[:MAX_VALUE]

    def at(self, at: int, number: int) -> tuple[Any, int]:
        """Return the element that starts at an offset, and its end. Raises ProblemError."""
        while True:
            size = len(self._window)
            cut = self._from + size < len(self._text)
            try:
                values, end = _scanned(self._window, at - self._from)
                if end < size or not cut:
                    return values, self._from + end
            except (_TwiceError, _TooManyError, RecursionError) as error:
                raise _unread(error, f"/jobs/{number}") from None
            except (ValueError, StopIteration) as error:
                if not cut:
                    what = (
                        str(error) if isinstance(error, ValueError) else "truncated or invalid JSON"
                    )
                    why = f"job {number} of the batch: {what}"
                    raise _no_json(why) from None
            if self._from == at:
                raise ProblemError(
                    413, "too large",
                    f"job {number} of the batch has more than {MAX_VALUE:,} characters or is not "
                    "valid JSON", "write long data to a file and pass its path in the command",
                )  # fmt: skip
            self._from, self._window = at, self._text[at : at + MAX_VALUE]


def _right(
    text: str,
    values: Any,
    decoder: msgspec.json.Decoder[T],
    kind: type[Any],
    path: Path,
    problems: list[ConfigProblem],
) -> T | None:
    """Return the decoded value, or None after adding what is wrong to `problems`."""
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        before, first = len(problems), str(error)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            read(values, kind, path, problems)
        if len(problems) == before:
            problems.append(ConfigProblem(path, first, ""))
        return None
    except (msgspec.DecodeError, UnicodeError) as error:
        where = "".join(f"/{step}" for step in path)
        raise _no_json(f"{where}: {error}" if where else str(error)) from None


async def in_turns(pieces: Pieces[T]) -> T:
    """Run piecewise work to its end, and yield to the event loop between pieces."""
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            found: T = done.value
            return found
        await asyncio.sleep(0)


def at_once(pieces: Pieces[T]) -> T:
    """Run small piecewise work to its end without yielding to the event loop."""
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            found: T = done.value
            return found


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        why = f"the body is not UTF-8: {error.reason} at byte {error.start}"
        raise _no_json(why) from None


def _space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None, "the pattern matches the empty string"
    return found.end()


def _no_json(why: str) -> ProblemError:
    return ProblemError(400, "invalid JSON", why, "send JSON in UTF-8")


def _unread(error: Exception, where: str) -> ProblemError:
    """Return the problem for a body that the scanner rejected."""
    name, _, number = where.removeprefix("/").partition("/")
    at = f"{name}[{number}]" if number else name or "the body"
    if isinstance(error, RecursionError):
        return ProblemError(400, "too deep", f"{at}: is nested too deeply", _SEE)
    if isinstance(error, _TooManyError):
        return ProblemError(400, "too deep", f"{at}: {_TOO_LONG}", f"send less at once; {_SEE}")
    if isinstance(error, _TwiceError):
        key = str(error)[:40]
        wrong = FieldProblem(where, f"duplicate key {key!r}", "keep one of the two")
        what = f"{at}: {wrong.detail}"
        return ProblemError(422, "invalid", what, wrong.mend, errors=[wrong])
    why = str(error)
    return _no_json(why if not isinstance(error, JSONDecodeError) else f"{why[:200]}")


def _invalid(problems: list[ConfigProblem], see: str) -> ProblemError:
    """Return the problem that lists all wrong values."""
    errors = [
        FieldProblem("".join(map(_step, problem.path)), problem.what, problem.fix)
        for problem in problems[:MAX_PROBLEMS]
    ]
    detail = "; ".join(map(str, problems[:3]))
    return ProblemError(422, "invalid", detail, f"see {see}", errors=errors)


def _step(key: str | int) -> str:
    """Return one reference token of a JSON pointer (RFC 6901)."""
    return "/" + str(key).replace("~", "~0").replace("/", "~1")


def _after(text: str, at: int) -> ProblemError:
    """Return the problem for unexpected text after the list of a batch."""
    if text.startswith(",", _space(text, at)):
        wrong = FieldProblem("", "unexpected key after jobs", "remove the key")
        return ProblemError(422, "invalid", wrong.detail, wrong.mend, errors=[wrong])
    return _no_json("the batch does not end with ]}")


_SEE = "see /v1/openapi.json"
_TOO_LONG = (
    "has too many objects, or a list or object is too long: "
    f"at most {MAX_OBJECTS:,} objects, and as many members of each list or object"
)
_TOO_LARGE = ProblemError(
    413, "too large", f"the body has more than {MAX_VALUE:,} bytes and is not a batch of jobs",
    'write long data to a file, or send jobs as {"jobs": [...]}',
)  # fmt: skip
TOO_MANY = ProblemError(
    413, "too many jobs", f"more than {MAX_JOBS:,} jobs, including the jobs of arrays",
    "send several batches",
)  # fmt: skip
