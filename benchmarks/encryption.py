"""TLS for the ends that are not redpoll's, by Python's ssl alone, and the certificates of all."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from benchmarks.control import Fields

#: The cipher of both ends of every contender; another one would be another measurement.
CIPHER = "TLS_AES_256_GCM_SHA384"


def certificates(folder: Path) -> Fields:
    """Make the files of one CA that both ends of a row show; return the options that name them."""
    from redpoll.pki import CA

    file = CA.make("benchmark CA").issue("node", ["127.0.0.1"]).save(folder / "node.pem")
    return {"certificate": str(file)}


def context(options: Fields, *, server_side: bool) -> ssl.SSLContext | None:
    """Return what an end encrypts with, or None if it is plain."""
    if not options.get("encrypted"):
        return None
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_cert_chain(options["certificate"])
    made.load_verify_locations(options["certificate"])
    if server_side:
        made.num_tickets = 0
    return made


def encrypted(connection: socket.socket, options: Fields, *, server_side: bool) -> socket.socket:
    """Return a connection with TLS on it, or as it is if the end is plain."""
    tls = context(options, server_side=server_side)
    if tls is None:
        return connection
    secured = tls.wrap_socket(connection, server_side=server_side)
    agreed = secured.cipher()
    if agreed is None or agreed[0] != CIPHER:
        raise ConnectionError(f"the ends agreed on {agreed}, not on {CIPHER}")
    return secured


def self_signed(folder: Path) -> None:
    """Write ``key.pem`` and ``cert.pem``, self-signed for localhost and 127.0.0.1, as net-queue's scripts expect them."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))]
    begin = dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + dt.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(made.public_bytes(encoding))
    (folder / "key.pem").write_bytes(
        key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
