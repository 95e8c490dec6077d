"""Messages and answers that arrive in fragments, several at once: what of them is here, and how much may be.

A message takes its place in the window with its first frame. An answer takes none: it was asked for, and what nobody
waits for is counted and not kept.
"""

from __future__ import annotations

from collections.abc import Callable

from redpoll.errors import ProtocolError
from redpoll.wire.assembly import Assembly
from redpoll.wire.capabilities import WINDOW_UNIT
from redpoll.wire.frames import Kind, is_later
from redpoll.wire.settings import Settings

__all__ = ["MAX_UNWANTED", "Partial"]

#: So many answers that nobody waits for may be under way at once on one link: to requests that were given up. Of each
#: only the number of its bytes is kept.
MAX_UNWANTED = 4096

_REQ_ACK = int(Kind.REQ_ACK)
_RETRY = int(Kind.RETRY)
_ANSWER = int(Kind.ANSWER)


class Partial:
    """What is begun on one link, by identity and serial: answers have serials of this end's, messages of the other's.

    Attributes:
        answers: The answers among these that are kept.
    """

    __slots__ = ("_bodies", "_by_serial", "_bytes", "_max_bytes", "_max_messages", "_messages", "_unwanted", "answers")

    def __init__(self, settings: Settings) -> None:
        self._bodies: dict[tuple[bytes, int], Assembly] = {}
        #: The messages among these, as a cancel frame names them; of two with one serial the later.
        self._by_serial: dict[int, Assembly] = {}
        self._max_messages = settings.window
        # A sender may begin a message that fits the window while no more than a quarter of that is in use, and one
        # that does not fit it beside all others.
        window = max(settings.window_bytes, WINDOW_UNIT)
        self._max_bytes = window + window // 4 + settings.max_message_size
        self._messages = 0
        self._bytes = 0
        self.answers: dict[tuple[bytes, int], Assembly] = {}
        self._unwanted = 0

    @property
    def wanted(self) -> bool:
        """Whether any of these will be handed over."""
        return any(not body.discarded for body in self._bodies.values())

    @property
    def oldest(self) -> Assembly | None:
        """What began first of what will be handed over."""
        return next((body for body in self._bodies.values() if not body.discarded), None)

    def all(self) -> list[Assembly]:
        """All that is begun."""
        return list(self._bodies.values())

    def get(self, identity: bytes, serial: int) -> Assembly | None:
        """What was begun under an identity and a serial."""
        return self._bodies.get((identity, serial))

    def message(self, serial: int) -> Assembly | None:
        """The message, not the answer, that was begun under a serial."""
        return self._by_serial.get(serial)

    def begin(self, body: Assembly, awaited: Callable[[bytes, int], bool]) -> None:
        """Note a message, or an answer, of which more is to come in fragments.

        Args:
            body: What is here of it.
            awaited: Whether somebody waits for the answer with an identity and a serial.

        Raises:
            ProtocolError: It was begun before, or more is begun than the window allows.
        """
        key = body.identity, body.serial
        if key in self._bodies:
            raise ProtocolError(f"message {body.serial} was begun twice")
        self._bodies[key] = body
        if not body.kind & _ANSWER:
            self._by_serial[body.serial] = body
        if body.discarded:
            # Not taken, or known already: it has no place any more, at neither end.
            self._count_unwanted(1)
            return
        if body.kind & _ANSWER:
            self.answers[key] = body
            # Also those whose request ended since: by its deadline, by another answer.
            self._discard([each for each in self.answers if not awaited(*each)])
            return
        self._messages += 1
        self._bytes += body.size
        if self._messages > self._max_messages:
            raise ProtocolError(f"{self._messages} messages were begun, more than the window allows")
        if self._bytes > self._max_bytes:
            raise ProtocolError(f"messages of {self._bytes} bytes were begun, more than the window allows")

    def _discard(self, keys: list[tuple[bytes, int]]) -> None:
        for key in keys:
            self.answers.pop(key).discard()
        self._count_unwanted(len(keys))

    def discard(self, body: Assembly) -> None:
        """Keep nothing of a message that was begun: its place is given back."""
        if not body.discarded and self._bodies.get((body.identity, body.serial)) is body:
            self._messages -= 1
            self._bytes -= body.size
            self._count_unwanted(1)
        body.discard()

    def discard_later(self, serial: int) -> None:
        """Keep no message later than one that is to be acknowledged: it is sent again over another link."""
        for body in self._bodies.values():
            first_time = body.kind & (_REQ_ACK | _RETRY | _ANSWER) == _REQ_ACK
            if first_time and not body.discarded and is_later(body.serial, serial):
                body.discard()
                self._messages -= 1
                self._bytes -= body.size
                self._unwanted += 1

    def give_up(self) -> None:
        """Keep nothing of all that is begun."""
        for body in self._bodies.values():
            self._unwanted += not body.discarded
            body.discard()
        self.answers.clear()
        self._messages = self._bytes = 0

    def _count_unwanted(self, count: int) -> None:
        self._unwanted += count
        if self._unwanted > MAX_UNWANTED:
            raise ProtocolError(f"{self._unwanted} answers or messages were begun that nobody waits for")

    def end(self, body: Assembly) -> None:
        """Nothing more comes of a body, which may have come in one frame, beside one in fragments of the same name."""
        key = body.identity, body.serial
        if self._bodies.get(key) is not body:
            return
        del self._bodies[key]
        if self._by_serial.get(body.serial) is body:
            del self._by_serial[body.serial]
        if body.discarded:
            self._unwanted -= 1
        elif body.kind & _ANSWER:
            del self.answers[key]
        else:
            self._messages -= 1
            self._bytes -= body.size
