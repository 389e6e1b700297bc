"""HTTPS with a certificate made here."""

from __future__ import annotations

import ssl
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from servers import fake_server

from pitstop.config import TLS
from pitstop.errors import ConfigError
from pitstop.server.tls import tls_context


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """cert, key, other (a key of another certificate), locked (the key, encrypted), trust (a client's context)."""
    folder: Path = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    ours, another = authority.issue_cert("127.0.0.1", "localhost"), authority.issue_cert("localhost")
    found = SimpleNamespace(**{name: str(folder / f"{name}.pem") for name in ("cert", "key", "other", "locked")})
    Path(found.cert).write_bytes(b"".join(blob.bytes() for blob in ours.cert_chain_pems))
    Path(found.key).write_bytes(ours.private_key_pem.bytes())
    Path(found.other).write_bytes(another.private_key_pem.bytes())
    key = serialization.load_pem_private_key(ours.private_key_pem.bytes(), None)
    encryption = serialization.BestAvailableEncryption(b"secret")
    Path(found.locked).write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
    found.trust = ssl.create_default_context()
    authority.configure_trust(found.trust)
    return found


def test_https_serves_and_streams(files: SimpleNamespace):
    with fake_server("--tls", files.cert, files.key) as server:
        url = server.url.replace("http://", "https://")
        with httpx.Client(base_url=url, verify=files.trust) as client:
            assert client.get("/readyz").status_code == 200
            body = {"model": "toy", "prompt": "#say over tls#", "max_tokens": 100, "stream": True}
            text = client.post("/v1/completions", json=body).text
            assert text.endswith("data: [DONE]\n\n")
        with pytest.raises(httpx.ConnectError):
            httpx.get(url + "/readyz")  # a client that does not trust the authority: it is a real handshake
        with pytest.raises(httpx.TransportError):
            httpx.get(server.url + "/readyz")


def test_old_protocols_are_refused(files: SimpleNamespace):
    assert tls_context(TLS(files.cert, files.key)).minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("cert", "key", "message"),
    [
        ("no/such/file", "key", "--tls-cert no/such/file: No such file"),
        ("cert", "no/such/file", "--tls-key no/such/file: No such file"),
        ("cert", "other", "is not the key of"),
        ("cert", "locked", "is encrypted; decrypt it first"),
        ("key", "key", "not a certificate chain and its key in PEM format"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_a_clear_error(files: SimpleNamespace, cert: str, key: str, message: str):
    with pytest.raises(ConfigError, match=message):
        tls_context(TLS(getattr(files, cert, cert), getattr(files, key, key)))
