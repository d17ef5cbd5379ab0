"""Health check of a container: exit with 0 if the daemon or standby of a configuration answers.

python healthy.py /etc/sia/sia.toml
"""

from __future__ import annotations

import ssl
import sys
import urllib.request
from pathlib import Path
from urllib.error import URLError

from daemon.config.read import peek
from sia.console.errors import UserError

PATIENCE = 5.0
"""Timeout in seconds; a healthy daemon answers within milliseconds."""


def main(config: Path) -> int:
    """Return 0 if the daemon answers, else print the reason and return 1."""
    trusting = ssl.create_default_context()
    trusting.check_hostname = False  # the certificate has the public name, not the loopback address
    trusting.verify_mode = ssl.CERT_NONE
    try:
        listen = peek(config).listen
        near = listen._replace(host="::1" if ":" in listen.host else "127.0.0.1")
        asked = f"{near.url}/healthz"
        urllib.request.urlopen(asked, timeout=PATIENCE, context=trusting).close()  # noqa: S310
    except (UserError, URLError, OSError) as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
