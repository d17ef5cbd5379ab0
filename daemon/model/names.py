"""Bounds of names and numbers of GPUs, in the configuration and in requests."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from sia.limits import MAX_QUOTA

MAX_NAME = 200
"""Maximum characters of the name of a pool, node, user or job. Job ids become names of folders,
which have at most 255 bytes."""

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
GpuCount = Annotated[int, Meta(ge=0, le=MAX_QUOTA)]
