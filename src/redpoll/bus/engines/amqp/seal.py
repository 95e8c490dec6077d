"""TLS of a connection, without a socket: its owner, and the thread of the heartbeats, each send what it returns.

asyncio's own TLS belongs to the loop alone: nothing can be sent through it while the loop is blocked.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Final

__all__ = ["Seal"]

#: Maximum bytes decrypted at once: more than a TLS record has.
_PIECE: Final = 65_536


class Seal:
    """One end of an encrypted connection. Calls must not overlap: the owner locks.

    Args:
        context: The settings: what is trusted, and the own certificate.
        host: The name that the certificate of the other end must have.

    Attributes:
        open: True once the handshake is over, so that bytes can be sealed.
    """

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self.open = False
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    def receive(self, data: bytes) -> bytes:
        """Take bytes of the other end, none to begin the handshake, and return what they mean.

        Raises:
            ssl.SSLError: They are no TLS, or the certificate is not trusted.
        """
        self._incoming.write(data)
        found = []
        # Where the other end says goodbye, the end of its socket follows.
        with suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            if not self.open:
                self._tls.do_handshake()
                self.open = True
            while piece := self._tls.read(_PIECE):
                found.append(piece)
        return b"".join(found)

    def seal(self, data: bytes | memoryview) -> bytes:
        """Encrypt bytes, and return them behind what TLS itself has to send."""
        if data:
            self._tls.write(data)
        return self._outgoing.read()
