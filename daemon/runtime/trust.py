"""TLS contexts of clients: which certificates they trust."""

from __future__ import annotations

import ssl
from pathlib import Path

from sia.console.errors import UserError


def trusting(
    ca: str | Path = "", *, system: bool = False, mend: str = "give a file in PEM"
) -> ssl.SSLContext:
    """Return a context that trusts the certificates in `ca`, with `system` also the system's.

    Raises UserError with the fix `mend` if the file contains no certificates.
    """
    try:
        if not system:
            return ssl.create_default_context(cafile=ca)
        context = ssl.create_default_context()
        if ca:
            # Trust a listed certificate itself, whoever issued it.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            context.load_verify_locations(ca)
    except OSError as error:
        what = "contains no certificates" if isinstance(error, ssl.SSLError) else error.strerror
        raise UserError(f"{ca}: {what}; {mend}") from None
    return context
