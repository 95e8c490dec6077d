"""Requests whose answer is still to come, and those to libchirp that nobody waits for any more."""

from __future__ import annotations

from redpoll.wire.frames import Kind
from redpoll.wire.link import Link
from redpoll.wire.outgoing import Outgoing

__all__ = ["MAX_GIVEN_UP", "Requests"]

#: Of requests to libchirp that were given up so many are remembered, to know their answers when they come after all.
MAX_GIVEN_UP = 1024

_WANTED = int(Kind.WANTED)


class Requests(dict[int | bytes, list[Outgoing]]):
    """The requests to one peer, oldest first: by serial where the work is done, and for libchirp by identity.

    Attributes:
        count: How many they are.
    """

    __slots__ = ("count", "given_up")

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        #: Identities of requests to libchirp that nobody waits for any more, the latest last.
        self.given_up: dict[bytes, None] | None = None

    def add(self, key: int | bytes, out: Outgoing) -> None:
        """Wait for an answer with a key."""
        self.setdefault(key, []).append(out)
        self.count += 1

    def take(self, key: int | bytes) -> Outgoing | None:
        """Take out the request that an answer is for, the oldest one with that key."""
        waiting = self.get(key)
        if not waiting:
            return None
        out = waiting.pop(0)
        self.count -= 1
        if not waiting:
            del self[key]
        return out

    def drop(self, out: Outgoing) -> None:
        """Wait for an answer no longer; one of libchirp that comes after all is no message for the handler."""
        if out.link is not None and out.link.announced is None and out.kind & _WANTED:
            given_up = self.given_up
            if given_up is None:
                given_up = self.given_up = {}
            given_up[out.identity] = None
            if len(given_up) > MAX_GIVEN_UP:
                del given_up[next(iter(given_up))]
        self.forget(out)

    def forget(self, out: Outgoing) -> None:
        """Keep a request no longer."""
        for key in (out.serial, out.identity):
            waiting = self.get(key)
            if waiting is not None and out in waiting:
                waiting.remove(out)
                self.count -= 1
                if not waiting:
                    del self[key]

    def was_given_up(self, identity: bytes) -> bool:
        """Whether an answer is to a request to libchirp that was given up: true once for each."""
        given_up = self.given_up
        if not given_up or identity not in given_up:
            return False
        del given_up[identity]
        return True

    def over(self, link: Link) -> list[Outgoing]:
        """Those that went out over a link."""
        return [out for waiting in self.values() for out in waiting if out.link is link]
