"""TLS for the ends that are not redpoll's, by Python's ssl alone; as there, both show certificates of one CA."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from benchmarks.control import Fields

#: What both ends of every contender agree on; another one would be another measurement.
CIPHER = "TLS_AES_256_GCM_SHA384"


def certificates(folder: Path) -> Fields:
    """Make the files that both ends of a row need; return the options that name them."""
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
