"""Notifies the service manager that the daemon is ready (sd_notify(3))."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def ready(status: str) -> None:
    """Send READY=1 with a status line. Does nothing without a service manager; does not block."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.settimeout(0)
        line.connect("\0" + path[1:] if path[0] == "@" else path)
        line.send(f"READY=1\nSTATUS={status}\n".encode())
