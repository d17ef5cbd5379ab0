"""Read a JSON file of a stated form."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from replay.logs.limits import MAX_JSON
from replay.logs.read import reading
from sia.console.errors import UserError

Form = TypeVar("Form")


def read_json(path: Path, form: type[Form]) -> Form:
    """Return the value in a JSON file. Raises UserError in one line if it has another form."""
    with reading(path), path.open("rb") as file:
        text = file.read(MAX_JSON + 1)
    if len(text) > MAX_JSON:
        raise UserError(f"{path}: more than {MAX_JSON} bytes; give a smaller file")
    try:
        return msgspec.json.decode(text, type=form)
    except msgspec.DecodeError as error:
        if not isinstance(error, msgspec.ValidationError) and "truncated" in str(error):
            lines = text.rstrip().count(b"\n") + 1
            raise UserError(f"{path}: line {lines}: the JSON ends too soon; complete it") from None
        raise UserError(f"{path}: {error}; correct the file") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: the text is not UTF-8; save it as UTF-8") from None
