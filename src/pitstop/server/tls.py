"""TLS: the certificate is read and checked before anything starts."""

from __future__ import annotations

import ssl

from pitstop.config import TLS
from pitstop.errors import ConfigError


def tls_context(tls: TLS) -> ssl.SSLContext:
    """A server's context: TLS 1.2 or newer. Raises ConfigError that says which file is at fault."""

    def password() -> str:
        raise ConfigError(f"--tls-key {tls.key}: the key is encrypted; decrypt it first: openssl pkey -in {tls.key} -out plain.pem")

    for option, path in (("--tls-cert", tls.cert), ("--tls-key", tls.key)):
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise ConfigError(f"{option} {path}: {error.strerror}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.cert, tls.key, password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"--tls-key {tls.key} is not the key of --tls-cert {tls.cert}") from None
        raise ConfigError(f"--tls-cert {tls.cert}, --tls-key {tls.key}: not a certificate chain and its key in PEM format") from None
    return context
