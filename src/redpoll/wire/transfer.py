"""Large bodies on their way out: piece after piece, in turn, so that other frames pass between them."""

from __future__ import annotations

from redpoll.serializers.parts import Parts
from redpoll.wire.frames import PREAMBLE, TOTAL, Control, Kind
from redpoll.wire.outgoing import Body, Outgoing

__all__ = ["LONG", "LONG_PIECE", "TURN", "Transfer", "Transfers"]

#: Pieces of one body that are written before the next one has its turn: most bodies go out, arrive and are let go one
#: after another, so that both ends use the same memory again while the processor's cache has it.
TURN = 4


#: A body of more bytes than this is a long one: its link's owner sees to it that what goes beside it does not wait behind
#: what the system holds of it.
LONG = 16 * 1024 * 1024

#: Bytes that a long body goes in at a time, where `fragment_size` is more: as fast, and what passes waits for less.
LONG_PIECE = 128 * 1024


class Transfer:
    """What is still to be written of one message or answer.

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
        """Whether any of it was written."""
        return self._offset > 0

    @property
    def long(self) -> bool:
        """Whether it is a long body."""
        return len(self._view) > LONG

    @property
    def left(self) -> int:
        """Bytes that were not written yet."""
        return len(self._view) - self._offset

    @property
    def turn_is_over(self) -> bool:
        """Whether `TURN` pieces were written since its turn began."""
        return self._offset // self._piece % TURN == 0

    @property
    def begun_whole(self) -> bool:
        """Whether other output has to wait because this frame is half written."""
        return self.whole and self._offset > 0

    def begin(self, metadata: bytes) -> None:
        """Make what stands before the first piece, once the sending has its serial."""
        out = self.out
        header = out.header
        total = len(self._view)
        if self.whole:
            self._first = PREAMBLE.pack(out.identity, out.serial, total, len(header), self._kind) + header
            return
        kind = self._kind | Kind.CONTINUED | (Kind.METADATA if metadata else 0)
        size = len(metadata) + TOTAL.size + min(self._piece, total)
        preamble = PREAMBLE.pack(out.identity, out.serial, size, len(header), kind)
        self._first = preamble + metadata + header + TOTAL.pack(total)

    def take(self) -> tuple[list[Body], bool]:
        """Return the next piece to write and whether it is the last one."""
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
    """The transfers of one link, the one whose turn it is first."""

    __slots__ = ()

    def unbegun(self) -> list[Outgoing]:
        """The messages, not answers, of which nothing was written."""
        return [each.out for each in self if not each.begun and not each.answer]

    @property
    def answered(self) -> int:
        """Bytes of the answers among these, but for the largest one."""
        sizes = [len(each.out.body) for each in self if each.answer]
        return sum(sizes) - max(sizes, default=0)

    @property
    def owed(self) -> int:
        """Bytes of the answers among these that were not written yet."""
        return sum(each.left for each in self if each.answer)

    def stop(self, out: Outgoing) -> Transfer | None:
        """Write no further piece of a sending; None if there is none, or if half a frame would be left."""
        for transfer in self:
            if transfer.out is out and not transfer.begun_whole:
                self.remove(transfer)
                return transfer
        return None

    def take(self) -> tuple[list[Body], bool]:
        """Return the next piece of the first one and whether that is its last; the next one has its turn then."""
        transfer = self[0]
        pieces, done = transfer.take()
        if done:
            del self[0]
        elif not transfer.whole and transfer.turn_is_over:
            self.append(self.pop(0))
        return pieces, done
