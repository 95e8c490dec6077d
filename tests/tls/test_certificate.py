"""The fields of a peer's certificate."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest

from redpoll.pki import CA, Chain, inspect
from redpoll.testing.certificates import Certificates
from redpoll.tls.certificate import read_certificate


def der(file: Path) -> bytes:
    """The first certificate in a file, as TLS hands it over."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    return ssl.PEM_cert_to_DER_cert(begin + file.read_text().split(begin)[1].split(end)[0] + end)


def test_it_says_what_inspect_says(redpoll_pki: Certificates) -> None:
    """Subject, names, issuer, serial, dates and fingerprint are those that `redpoll pki show` prints."""
    file = redpoll_pki.issue("worker", ["worker.example.org", "10.0.0.7"])
    found, report = read_certificate(der(file)), inspect(file)
    for name in ("subject", "names", "issuer", "serial", "begin", "end", "fingerprint"):
        assert getattr(found, name) == getattr(report, name)
    assert found.name == "worker"
    assert found.names == ("worker.example.org", "10.0.0.7")
    assert found.begin.tzinfo is UTC


@pytest.mark.parametrize("key", ["ec", "rsa-2048"])
def test_a_renewed_certificate_has_the_same_key(redpoll_pki: Certificates, key: str, tmp_path: Path) -> None:
    """Renewing makes another fingerprint; the public key is another only if a new key was asked for."""
    authority = CA.load(redpoll_pki.folder)
    first = authority.issue("node", key=key)  # type: ignore[arg-type]
    again = authority.renew(first, now=datetime.now(UTC))
    other = authority.renew(first, new_key=True)

    def read(chain: Chain, name: str) -> tuple[str, str]:
        found = read_certificate(der(chain.save(tmp_path / name)))
        return found.fingerprint, found.public_key

    shown = [read(chain, f"{number}.pem") for number, chain in enumerate((first, again, other))]
    assert len({fingerprint for fingerprint, _ in shown}) == 3
    assert shown[0][1] == shown[1][1] != shown[2][1]
    assert shown[0][1].startswith("sha256:")


@pytest.mark.parametrize("data", [b"", b"no certificate", b"\x30\x03\x02\x01\x01"])
def test_what_is_none(data: bytes) -> None:
    """Bytes that are no certificate are a ValueError."""
    with pytest.raises(ValueError, match=r"."):
        read_certificate(data)
