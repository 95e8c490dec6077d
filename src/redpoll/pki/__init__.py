"""Certificates for nodes: a CA of your own and the certificates it issues, in libchirp's file layout.

All functions block, RSA keys for up to a second: call them with `asyncio.to_thread` in coroutines.
"""

from redpoll.pki.authority import CA
from redpoll.pki.chain import Chain
from redpoll.pki.dh import dh_parameters
from redpoll.pki.keys import KeyKind, PrivateKey
from redpoll.pki.report import Report, fingerprint, inspect

__all__ = ["CA", "Chain", "KeyKind", "PrivateKey", "Report", "dh_parameters", "fingerprint", "inspect"]
