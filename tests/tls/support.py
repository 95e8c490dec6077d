"""Two sessions of TLS that talk in memory."""

from __future__ import annotations

import ssl

from redpoll.address import Address
from redpoll.errors import TLSError
from redpoll.tls.contexts import Contexts
from redpoll.tls.credentials import Credentials, TLSSession

HERE = Address.parse("127.0.0.1:7")
THERE = Address.parse("127.0.0.1:8")


def sessions(server: Contexts, client: Contexts, name: str = "127.0.0.1") -> tuple[TLSSession, TLSSession]:
    """The sessions of a listening end and of one that dials it by a name."""
    return Credentials(server).accept(THERE), Credentials(client).dial(HERE, name)


def shake_hands(*ends: TLSSession) -> list[TLSError | None]:
    """Exchange bytes until there are none; return each end's error, which may be reported by the other."""
    failures: list[TLSError | None] = [None, None]
    finished = [False, False]
    for _ in range(8):
        for index, end in enumerate(ends):
            other = ends[1 - index]
            end.incoming.write(other.outgoing.read())
            if failures[index] is not None:
                continue
            try:
                if not finished[index]:
                    end.object.do_handshake()
                    finished[index] = True
                end.object.read(1)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                failures[index] = end.explained(error)
    return [
        failure or (None if done else TLSError("not done")) for failure, done in zip(failures, finished, strict=True)
    ]
