"""Sending of large bodies: piece by piece, in turns, so that other frames pass between them."""

from __future__ import annotations

from redpoll.serializers.parts import Parts
from redpoll.wire.frames import CONTINUED, METADATA, PREAMBLE, TOTAL, Control
from redpoll.wire.outgoing import Body, Outgoing

__all__ = ["LONG", "LONG_PIECE", "PIECES_PER_TURN", "Transfer", "Transfers"]

#: Pieces of one body written before the next body has its turn. Most bodies are sent, received and released one after
#: another, so that both ends reuse memory while it is in the processor's cache.
PIECES_PER_TURN = 4


#: Minimum size of a long body, in bytes: its link's owner keeps the system's buffers small, so that messages beside it
#: do not wait behind them.
LONG = 16 * 1024 * 1024

#: Maximum piece of a long body, in bytes, if `fragment_size` is larger: as fast, and messages beside it wait less.
LONG_PIECE = 128 * 1024


class Transfer:
    """The unwritten rest of one message or answer.

    Attributes:
        out: The sending.
        answer: Whether it is an answer, which has the serial of its request; a message has none before `begin`.
        whole: Whether it is one frame of libchirp's, between whose pieces nothing may be written.
    """

    __slots__ = ("_first", "_kind", "_offset", "_piece", "_view", "answer", "out", "whole")

    def __init__(self, out: Outgoing, kind: int, piece: int, *, whole: bool = False, answer: bool = False) -> None:
        self.out = out
        self.whole = whole
        self.answer = answer
        self._kind = kind
        self._first = b""
        body = out.body
        self._view: Parts | memoryview = body if isinstance(body, Parts) else memoryview(body).cast("B")
        self._piece = min(piece, LONG_PIECE) if self.long else piece
        self._offset = 0

    @property
    def begun(self) -> bool:
        """True if any of it is written."""
        return self._offset > 0

    @property
    def long(self) -> bool:
        """True for a long body."""
        return len(self._view) > LONG

    @property
    def left(self) -> int:
        """Unwritten bytes."""
        return len(self._view) - self._offset

    @property
    def turn_ended(self) -> bool:
        """True after `PIECES_PER_TURN` pieces."""
        return self._offset // self._piece % PIECES_PER_TURN == 0

    @property
    def begun_whole(self) -> bool:
        """True if other output has to wait because this frame is half written."""
        return self.whole and self._offset > 0

    def begin(self, metadata: bytes) -> None:
        """Create the bytes before the first piece, once the sending has its serial."""
        out = self.out
        header = out.header
        total = len(self._view)
        if self.whole:
            self._first = PREAMBLE.pack(out.identity, out.serial, total, len(header), self._kind) + header
            return
        kind = self._kind | CONTINUED | (METADATA if metadata else 0)
        size = len(metadata) + TOTAL.size + min(self._piece, total)
        preamble = PREAMBLE.pack(out.identity, out.serial, size, len(header), kind)
        self._first = preamble + metadata + header + TOTAL.pack(total)

    def take(self) -> tuple[list[Body], bool]:
        """Return the next piece to write, and whether it is the last."""
        offset = self._offset
        self._offset = stop = min(offset + self._piece, len(self._view))
        view = self._view
        body: list[Body] = view.cut(offset, stop) if isinstance(view, Parts) else [view[offset:stop]]
        done = stop == len(self._view)
        if offset == 0:
            return [self._first, *body], done
        if self.whole:
            return body, done
        out = self.out
        frame = PREAMBLE.pack(out.identity, out.serial, stop - offset, 0, Control.FRAGMENT)
        return [frame, *body], done


class Transfers(list[Transfer]):
    """The transfers of one link; the first has its turn."""

    __slots__ = ()

    def unbegun(self) -> list[Outgoing]:
        """Return the messages, not answers, of which nothing is written."""
        return [each.out for each in self if not each.begun and not each.answer]

    def answering(self, serial: int) -> bool:
        """Return True if the answer to a request of the other end is among these."""
        return any(each.answer and each.out.serial == serial for each in self)

    @property
    def waiting_answers(self) -> int:
        """Bytes of the answers, without the largest."""
        sizes = [len(each.out.body) for each in self if each.answer]
        return sum(sizes) - max(sizes, default=0)

    @property
    def unwritten_answers(self) -> int:
        """Unwritten bytes of the answers."""
        return sum(each.left for each in self if each.answer)

    def stop(self, out: Outgoing) -> Transfer | None:
        """Stop writing a sending; return its transfer, or None if there is none, or if half a frame would remain."""
        for transfer in self:
            if transfer.out is out and not transfer.begun_whole:
                self.remove(transfer)
                return transfer
        return None

    def take(self) -> tuple[list[Body], bool]:
        """Return the next piece of the first transfer, and whether it is the last; then advance to the next transfer."""
        transfer = self[0]
        pieces, done = transfer.take()
        if done:
            del self[0]
        elif not transfer.whole and transfer.turn_ended:
            self.append(self.pop(0))
        return pieces, done
