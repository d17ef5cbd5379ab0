"""What a name and a number of GPUs may be, in the configuration and in requests alike."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from sia.limits import MAX_QUOTA

MAX_NAME = 200
"""Characters of a name of a pool, node, user or job: longer ones are no names, and ids become
names of folders, which end at 255 bytes."""

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
GpuCount = Annotated[int, Meta(ge=0, le=MAX_QUOTA)]
