"""A CA at a fixed time, and a TLS handshake in memory, for the tests of certificates."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from redpoll.pki import CA, Chain, PrivateKey

#: When the certificates of tests that judge dates are made.
NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def saved(folder: Path, name: str = "worker", names: list[str] | None = None) -> tuple[CA, Chain, Path]:
    """Make a CA and what it issues, and save both in the folder."""
    authority = CA.make()
    authority.save(folder)
    chain = authority.issue(name, names)
    return authority, chain, chain.save(folder / f"{name}.pem")


def self_issued(name: str, key: PrivateKey, *, days: int) -> x509.CertificateBuilder:
    """The beginning of a certificate that is valid from `NOW` on and names itself as its issuer."""
    own = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    return (
        x509.CertificateBuilder()
        .subject_name(own)
        .issuer_name(own)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=days))
    )


def server_context(pem: Path) -> ssl.SSLContext:
    """A context of a server that wants a certificate, all of it from one file as libchirp has it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(pem))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(pem)
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    return context


def client_context(pem: Path) -> ssl.SSLContext:
    """A context of a client that checks names, all of it from one file."""
    context = ssl.create_default_context(cafile=str(pem))
    context.load_cert_chain(pem)
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    return context


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Shake hands in memory; return both ends.

    Raises:
        ssl.SSLError: One end does not accept the other.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    open_ends = list(ends)
    for _ in range(10):
        for end in list(open_ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            open_ends.remove(end)
        if not open_ends:
            # What the server says to a client's certificate comes after TLS 1.3's handshake.
            ends[1].write(b"x")
            assert ends[0].read(1) == b"x"
            return ends
    raise AssertionError("the handshake does not end")
