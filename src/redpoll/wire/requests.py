"""Requests whose answer is pending, and abandoned requests to libchirp."""

from __future__ import annotations

from redpoll.wire.frames import WANTED
from redpoll.wire.outgoing import Outgoing

__all__ = ["MAX_ABANDONED", "Requests"]

#: Maximum abandoned requests to libchirp that are remembered per peer, so that their late answers are recognized.
MAX_ABANDONED = 1024


class Requests(dict[int | bytes, list[Outgoing]]):
    """Requests to one peer that may be answered and are not in flight, oldest first.

    Those whose work is done, or that are to be resent, by serial; all to libchirp, by identity.

    Attributes:
        count: Number of requests.
    """

    __slots__ = ("abandoned", "count")

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        #: Identities of abandoned requests to libchirp, the latest last.
        self.abandoned: dict[bytes, None] | None = None

    def add(self, key: int | bytes, out: Outgoing) -> None:
        """Wait for an answer with a key."""
        self.setdefault(key, []).append(out)
        self.count += 1

    def take(self, key: int | bytes) -> Outgoing | None:
        """Remove and return the oldest request with a key, or None."""
        waiting = self.get(key)
        if not waiting:
            return None
        out = waiting.pop(0)
        self.count -= 1
        if not waiting:
            del self[key]
        return out

    def drop(self, out: Outgoing) -> None:
        """Abandon a request; a late answer of libchirp is not delivered as a message."""
        if out.link is not None and out.link.libchirp and out.kind & WANTED:
            abandoned = self.abandoned
            if abandoned is None:
                abandoned = self.abandoned = {}
            abandoned[out.identity] = None
            if len(abandoned) > MAX_ABANDONED:
                del abandoned[next(iter(abandoned))]
        self.forget(out)

    def forget(self, out: Outgoing) -> None:
        """Remove a request."""
        for key in (out.serial, out.identity):
            waiting = self.get(key)
            if waiting is not None and out in waiting:
                waiting.remove(out)
                self.count -= 1
                if not waiting:
                    del self[key]

    def pop_abandoned(self, identity: bytes) -> bool:
        """Return True if an answer is to an abandoned request to libchirp; once for each."""
        abandoned = self.abandoned
        if not abandoned or identity not in abandoned:
            return False
        del abandoned[identity]
        return True

    def over(self, link: object) -> list[Outgoing]:
        """Return the requests sent over a link."""
        return [out for waiting in self.values() for out in waiting if out.link is link]
