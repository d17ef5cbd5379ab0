"""Certificates for tests, made by openssl: an authority's, a server's, one that has expired."""

import subprocess


def openssl(*words):
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


class Pair:
    """A certificate of `name` and its key, valid for `days`, signed by an authority or itself."""

    def __init__(self, folder, name, *, days=30, by=None, names="IP:127.0.0.1"):
        self.certificate, self.key = folder / f"{name}.pem", folder / f"{name}.key"
        asked, more = folder / f"{name}.csr", folder / f"{name}.ext"
        openssl(
            "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-keyout", self.key, "-out", asked, "-subj", f"/CN={name}",
        )  # fmt: skip
        kind = "basicConstraints=critical,CA:true" if names is None else f"subjectAltName={names}"
        more.write_text(f"{kind}\n")
        signed = ["-signkey", self.key]
        if by is not None:
            signed = ["-CA", by.certificate, "-CAkey", by.key, "-CAcreateserial"]
        openssl(
            "x509", "-req", "-in", asked, *signed, "-days", days, "-extfile", more,
            "-out", self.certificate,
        )  # fmt: skip
        self.key.chmod(0o600)
