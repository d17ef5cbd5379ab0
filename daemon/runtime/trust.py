"""Whose certificates trusts who connects to another machine by TLS."""

from __future__ import annotations

import ssl
from pathlib import Path

from sia.console.errors import UserError


def trusting(
    ca: str | Path = "", *, system: bool = False, mend: str = "give a file in PEM"
) -> ssl.SSLContext:
    """Trust the certificates of the file `ca`, or besides those that the system trusts.

    Raises UserError, which says how to `mend` it, where the file holds no certificates.
    """
    try:
        if not system:
            return ssl.create_default_context(cafile=ca)
        context = ssl.create_default_context()
        if ca:
            # A certificate that is named is trusted as it is, whoever has issued it.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            context.load_verify_locations(ca)
    except OSError as error:
        what = "holds no certificates" if isinstance(error, ssl.SSLError) else error.strerror
        raise UserError(f"{ca}: {what}; {mend}") from None
    return context
