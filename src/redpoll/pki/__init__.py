"""Certificates for nodes: a CA of your own, and what it issues, in the file layout of libchirp.

Everything here blocks, RSA keys for up to a second: coroutines call it with `asyncio.to_thread`.
"""

from redpoll.pki.authority import CA
from redpoll.pki.chain import Chain
from redpoll.pki.dh import dh_parameters
from redpoll.pki.keys import KeyKind, PrivateKey
from redpoll.pki.report import Report, fingerprint, inspect

__all__ = ["CA", "Chain", "KeyKind", "PrivateKey", "Report", "dh_parameters", "fingerprint", "inspect"]
