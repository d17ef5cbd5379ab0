"""Whom a client trusts, and why it does not, in a line."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from sia.console.errors import UserError

if TYPE_CHECKING:
    from daemon.client import Where

OTHER_HOST, OTHER_ADDRESS = 62, 64
"""OpenSSL's numbers for certificates of somebody else."""


def trusting(where: Where) -> ssl.SSLContext:
    """What this machine trusts, and what the environment names. Raises UserError."""
    context = ssl.create_default_context()
    if where.ca:
        # A certificate that is named is trusted as it is, whoever has issued it.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_verify_locations(where.ca)
        except OSError as error:
            raise UserError(f"{where.ca}: {_said(error)}; set SIA_CA_FILE to a PEM file") from None
    if where.certificate:
        try:
            context.load_cert_chain(where.certificate, where.key, password=lambda: "")
        except OSError as error:
            mend = "set SIA_CERT_FILE and SIA_KEY_FILE to a pair in PEM, without a password"
            raise UserError(f"{where.certificate}: {_said(error)}; {mend}") from None
    return context


def _said(error: OSError) -> str:
    if not isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    if error.reason == "KEY_VALUES_MISMATCH":
        return "is not the certificate of that key"
    return "holds no certificates"


def distrust(error: ssl.SSLError) -> str:
    """Why nothing is said to who is there, and the mend."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in (OTHER_HOST, OTHER_ADDRESS):
            what = error.verify_message.rstrip(".").replace("Hostname mismatch, c", "c")
            return f"{what[:1].lower()}{what[1:]}; set SIA_URL to a name that the certificate has"
        return (
            f"its certificate is not trusted: {error.verify_message}; set SIA_CA_FILE to the "
            "certificate of who issued it"
        )
    reason = (error.reason or str(error)).lower().replace("_", " ")
    if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        return "does not encrypt; write http:// in SIA_URL"
    if "certificate required" in reason or "handshake failure" in reason:
        return "wants a certificate of ours; set SIA_CERT_FILE and SIA_KEY_FILE"
    return f"cannot agree on encryption: {reason}; look at SIA_URL and the daemon's certificate"
