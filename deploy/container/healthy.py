"""Ends with 0 where the daemon of a configuration lives, be it a stand-by: for health checks.

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
"""Seconds: a daemon that is well answers within milliseconds."""


def main(config: Path) -> int:
    """0 where it answers, 1 where not; why is said."""
    trusting = ssl.create_default_context()
    trusting.check_hostname = False  # its certificate is for the name by which others know it
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
