"""The sending half of a link: numbers and writes messages, ends and answers, and hands out the bytes to write now.

It does no I/O: the owner takes `take_output()` and, while the transport is writable, `take_fragment()`.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Any, Generic, Protocol

from redpoll.address import Address
from redpoll.serializers.parts import APART, Parts
from redpoll.wire.assembly import Assembly
from redpoll.wire.frames import (
    ACK,
    ACK_ANSWER,
    ACK_REFUSAL,
    ANSWER,
    METADATA,
    PREAMBLE,
    PREAMBLE_SIZE,
    REQ_ACK,
    RETRY,
    Control,
    control_frame,
    encode_refusal,
)
from redpoll.wire.inbound import Inbound
from redpoll.wire.liveness import Liveness
from redpoll.wire.metadata import DEADLINE_BLOCK, Field, millis
from redpoll.wire.outgoing import DONE_OR_ENDED, Body, Outgoing, Payload, Stage, Unawaited
from redpoll.wire.requests import Requests
from redpoll.wire.send_errors import too_large_error
from redpoll.wire.settings import Settings
from redpoll.wire.states import LinkState
from redpoll.wire.tally import Counters
from redpoll.wire.transfer import Transfer, Transfers
from redpoll.wire.window import ReceiveWindow, ResendPace, SendWindow

__all__ = ["ALMOST_SENT", "APART", "DONE_BELOW", "OUTPUT_LIMIT", "LinkPeer", "PeerT_co", "SendingHalf", "join_small"]

#: Maximum output waiting to be taken, in bytes; above it, messages wait in their peer's queue.
OUTPUT_LIMIT = 256 * 1024

#: Up to this much output of a writable link, in bytes, an unacknowledged message is done when it is added; above, when
#: it is written.
DONE_BELOW = 16 * 1024

#: A body with at most this many bytes left in the transport counts as sent: its further progress is not watched.
ALMOST_SENT = 64 * 1024

_TIMED = Struct("!16sIIHBHBHI")
_TIMED_SIZE = _TIMED.size
_TIMED_EXTRA = DEADLINE_BLOCK.size

#: Seconds whose milliseconds fit the field of a deadline.
_MAX_SECONDS = 0xFFFFFFFF / 1000


class LinkPeer(Protocol):
    """The peer of a link, as the link uses it: serials, which all its links share, and whether it may send and be idle."""

    address: Address | None

    serial: int
    counters: Counters
    requests: Requests

    def next_serial(self, used: Container[int] = ()) -> int:
        """Return the next serial that no message in flight or request has; it is the last one from now on."""

    def resending(self, out: Outgoing) -> None:
        """Note that a message is written again, with the serial that it has."""

    def fail(self, out: Outgoing, error: BaseException) -> None:
        """End a sending with an error."""

    @property
    def awaits_link(self) -> bool:
        """True if anything waits to be sent or answered: no link is idle."""

    @property
    def overrun(self) -> bool:
        """True if reading is paused, since more arrived than may wait."""


if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # The peer as the modules above know it: `Link[Peer]`. Set once, so a link of any peer is a link of a `LinkPeer`.
    PeerT_co = TypeVar("PeerT_co", bound=LinkPeer, covariant=True, default=LinkPeer)
else:
    from typing import TypeVar

    PeerT_co = TypeVar("PeerT_co", covariant=True)


@dataclass(slots=True, eq=False)
class SendingHalf(Generic[PeerT_co]):
    """The output of one link; `Link` adds its lifecycle and what it receives."""

    settings: Settings
    #: The peer that the link belongs to; None until the owner knows.
    peer: PeerT_co | None = field(init=False, default=None)
    liveness: Liveness = field(init=False)
    #: Changed by `Link.step`.
    state: LinkState = field(init=False, default=LinkState.HANDSHAKE)
    #: Whether messages may be sent in that state.
    sending: bool = field(init=False, default=False)
    receive_window: ReceiveWindow = field(init=False)
    #: Set by the owner: False while the transport is above its high-water mark.
    writable: bool = field(init=False, default=True)
    window: SendWindow = field(init=False, default_factory=SendWindow)
    #: Exists once a message was resent over this link to an announced node.
    resend_pace: ResendPace | None = field(init=False, default=None)
    #: Maximum size of header and body of a message, in bytes; toward libchirp that of its 32-bit length.
    max_size: int = field(init=False, default=0xFFFFFFFF)
    #: Written and unconfirmed messages by serial, oldest first.
    in_flight: dict[int, Outgoing] = field(init=False, default_factory=dict)
    output: list[Payload] = field(init=False, default_factory=list)
    output_size: int = field(init=False, default=0)
    output_large: bool = field(init=False, default=False)
    transfers: Transfers = field(init=False, default_factory=Transfers)
    #: Serial of the last large body written whole, and the count of sent bytes at its end.
    last_large: tuple[int, int] | None = field(init=False, default=None)
    #: Unacknowledged messages whose bytes were handed over and that wait for the transport to write them.
    written: list[Outgoing] = field(init=False, default_factory=list)
    bytes_sent: int = field(init=False, default=0)

    # Messages

    @property
    def free_places(self) -> int:
        """Number of small messages that may be written at once; 0 toward libchirp."""
        window = self.window
        if not self.writable or not self.sending or (self.transfers and self.settings.in_order):
            return 0
        has_bytes = window.used_bytes < window.limit_bytes or window.free_bytes() > 0
        return window.limit - window.used if has_bytes else 0

    @property
    def ready(self) -> bool:
        """True if a small message may be written."""
        return self.free_places > 0

    def admits(self, out: Outgoing) -> bool:
        """Return True if a message may be written now, given the state, the transport and the other end's window."""
        if not self.writable or self.output_size > OUTPUT_LIMIT or not self.sending:
            return False
        window = self.window
        if window.used >= window.limit or (self.transfers and self.settings.in_order):
            return False
        return window.used_bytes + out.size <= window.limit_bytes or window.admits_beyond(out.size)

    def transmit(self, out: Outgoing, peer: LinkPeer, now: float) -> None:
        """Write a message of its peer that `admits()` allowed: to the output, or a large one to the transfers."""
        size = out.size
        if size > self.max_size:
            peer.fail(out, too_large_error(out, self.max_size, peer.address))
            return
        peer.counters.sent += 1
        self.liveness.last_used = now
        self.window.take(size)
        out.link = self
        out.stage = Stage.SENT
        body = out.body
        length = len(body)
        kind = out.kind
        acknowledged = kind & REQ_ACK
        if length > self.settings.fragment_size:
            self.transfers.append(Transfer(out, kind, self.settings.fragment_size))
            return
        serial = (peer.serial + 1) & 0xFFFFFFFF
        if kind & RETRY or serial in self.in_flight or serial in peer.requests:
            serial = self.number(out, peer)
        else:
            peer.serial = out.serial = serial
            if acknowledged:
                self.in_flight[serial] = out
        header = out.header
        output = self.output
        if acknowledged and (deadline := out.deadline) is not None:
            self.output_size += _TIMED_SIZE + size
            seconds = deadline - now
            left = int(seconds * 1000.0) if 0.0 <= seconds < _MAX_SECONDS else millis(seconds)
            output.append(
                _TIMED.pack(out.identity, serial, length + _TIMED_EXTRA, len(header), kind | METADATA, 7, 1, 4, left)
            )
        else:
            self.output_size += PREAMBLE_SIZE + size
            output.append(PREAMBLE.pack(out.identity, serial, length, len(header), kind))
        if header:
            output.append(header)
        if length:
            output.append(body)
            if length > APART:
                self.output_large = True
                self.last_large = serial, self.bytes_sent + self.output_size
        if acknowledged:
            return
        if self.output_size > DONE_BELOW:
            self.written.append(out)
            return
        if length and type(body) is not bytes:
            # The caller may reuse its buffer before this is written.
            output[-1] = bytes(body)
        out.stage = Stage.ENDED
        out.deadline = None
        out.settle(None, None)

    @property
    def resends(self) -> bool:
        """True if a message that `admits()` allowed may be resent; False until a whole step before it has arrived."""
        pace = self.resend_pace
        if pace is None or pace.ping is None:
            return True
        if pace.ping in self.in_flight or any(each.out.serial == pace.ping for each in self.transfers):
            return False
        # The last message of the step has ended. The ping may never be answered: see `MAX_UNANSWERED_PINGS`.
        pace.arrived(pace.ping)
        return True

    def note_resent(self, out: Outgoing) -> None:
        """Count a message that was resent to an announced node."""
        if self.resend_pace is None:
            self.resend_pace = ResendPace()
        self.resend_pace.resent(out.serial, PREAMBLE_SIZE + out.size)
        self._end_step()

    def _end_step(self) -> None:
        """Write the ping behind a whole step of resent messages, once the large ones among these are written."""
        pace = self.resend_pace
        if pace is None or not pace.due or any(each.out.kind & RETRY and not each.answer for each in self.transfers):
            return
        pace.due = False
        if pace.ping is not None:
            self.control(Control.PING, pace.ping)

    def number(self, out: Outgoing, peer: LinkPeer) -> int:
        """Assign a serial at the time of writing: serials have the order of the wire, which goodbyes rely on."""
        in_flight = self.in_flight
        if out.kind & RETRY:
            peer.resending(out)
        else:
            # They wrap around, and the message that had one may still be handled.
            out.serial = peer.next_serial(in_flight)
        if out.kind & REQ_ACK:
            in_flight[out.serial] = out
        return out.serial

    def is_writing(self, out: Outgoing) -> bool:
        """Return True if the transport has not written a whole message."""
        return out in self.written or any(transfer.out is out for transfer in self.transfers)

    def ended(self, out: Outgoing) -> None:
        """Free the place in the window of a message in flight that ended at the other end."""
        if self.in_flight.get(out.serial) is out:
            del self.in_flight[out.serial]
            self.window.free(1, out.size)

    def forget(self, out: Outgoing) -> None:
        """Take a message off the link: free its place in the window, and stop writing its fragments."""
        if self.in_flight.get(out.serial) is out:
            del self.in_flight[out.serial]
        self.window.free(1, out.size)
        self.transfers.stop(out)
        self._end_step()

    def send_cancel(self, out: Outgoing, hard: bool) -> bool:
        """Tell an announced node that a message is withdrawn; return True if it was not fully written, so cannot have begun.

        Args:
            out: The message.
            hard: Whether to cancel the work if it has begun.
        """
        transfer = self.transfers.stop(out)
        if transfer is not None and not transfer.begun:
            self.forget(out)
        elif transfer is not None or out.kind & REQ_ACK:
            self.control(Control.CANCEL, out.serial, b"\x01" if hard else b"")
        self._end_step()
        return transfer is not None

    # Ends of received messages, and answers

    def acknowledge(self, message: Inbound[Any], kind: int = ACK) -> None:
        """Acknowledge a message: the work is done.

        Args:
            message: The message.
            kind: For an announced sender; `ACK_NO_ANSWER` says that no answer follows.
        """
        frame = message.frame
        self.output.append(PREAMBLE.pack(frame[0], frame[1], 0, 0, kind))
        self.output_size += PREAMBLE_SIZE

    def refuse(self, message: Inbound[Any] | Assembly, code: int, text: str) -> None:
        """Refuse a message, with the reason. libchirp cannot be told."""
        body = encode_refusal(code, text)
        self._put(PREAMBLE.pack(message.identity, message.serial, len(body), 0, ACK_REFUSAL) + body)

    def answer(
        self, message: Inbound[Any], body: Payload, header: bytes = b"", *, ends: bool, out: Outgoing | None = None
    ) -> None:
        """Send the answer to a request of an announced node; it needs no place in the window.

        Args:
            message: The request.
            body: The answer; it is never acknowledged.
            header: Header of the answer.
            ends: Whether the answer is the acknowledgement as well.
            out: Settled when the answer is written; None if nothing waits for that.
        """
        kind = ACK_ANSWER if ends else ANSWER
        size = len(body)
        if size > self.settings.fragment_size or (size > APART and not self.writable):
            # If the transport is full, the answer waits here instead.
            if out is None:
                out = Unawaited()
                out.prepare(message, body, 0, None, None)
                out.header = header
            out.link = self
            out.stage = 1
            out.serial = message.serial
            self.transfers.append(Transfer(out, kind, self.settings.fragment_size, answer=True))
            return
        output = self.output
        frame = message.frame
        self.output_size += PREAMBLE_SIZE + len(header) + size
        output.append(PREAMBLE.pack(frame[0], frame[1], size, len(header), kind))
        if header:
            output.append(header)
        if size:
            output.append(body)
            if size > APART:
                self.output_large = True
        if out is not None:
            self.written.append(out)

    def credit(self, messages: int, size: int) -> None:
        """Return places of unacknowledged messages to an announced sender, by a credit frame per quarter of the window."""
        if self.receive_window.ended(messages, size):
            self._put(control_frame(Control.CREDIT, body=self.receive_window.take_credit()))

    def control(self, control: Control, serial: int = 0, body: bytes = b"") -> None:
        """Write a control frame, unless the other end has not announced itself."""
        if self.state is not LinkState.CLOSED:
            self._put(control_frame(control, serial, body=body))

    # Bytes

    @property
    def only_acknowledges(self) -> bool:
        """True if the output is acknowledgements of messages alone."""
        for part in self.output:  # noqa: SIM110  # `all` would take twice the steps, after each read
            if type(part) is not bytes or len(part) != PREAMBLE_SIZE or part[-1] != ACK:
                return False
        return True

    def take_output(self) -> list[Body]:
        """Return the bytes to write now: small frames joined, each large body by itself."""
        output = self.output
        if not output or (self.transfers and self.transfers[0].begun_whole):
            return []
        self.output_size = 0
        if self.output_large:
            self.output_large = False
            parts = join_small(output)
            self.bytes_sent += sum(map(len, parts))
        else:
            # Only large payloads are in pieces.
            part: Body = output[0] if len(output) == 1 else b"".join(output)  # type: ignore[assignment, arg-type]
            parts = [part]
            # Not `output_size`, which a run adds to at its end.
            self.bytes_sent += len(part)
        # The list is reused: a run may be adding to it, if the code that creates its messages sends others itself.
        output.clear()
        return parts

    def take_fragment(self, now: float) -> list[Body]:
        """Return the next piece of the next large body, in turn. Call it while the transport is writable."""
        transfers, peer = self.transfers, self.peer
        if not transfers or peer is None:
            return []
        transfer = transfers[0]
        out = transfer.out
        if out.stage in DONE_OR_ENDED and transfer.begun and not (transfer.whole or transfer.answer):
            # The other end answered after the first piece: it needs no more.
            del transfers[0]
            self.control(Control.CANCEL, out.serial)
            self._end_step()
            return self.take_output()
        if not transfer.begun:
            if not transfer.answer:
                self.number(out, peer)
            block = b""
            if out.deadline is not None and out.kind & REQ_ACK and not transfer.whole:
                block = DEADLINE_BLOCK.pack(7, Field.DEADLINE, 4, millis(out.deadline - now))
            transfer.begin(block)
        pieces, done = transfers.take()
        self.bytes_sent += sum(map(len, pieces))
        # Bodies take turns on the link, so its progress counts for all that have begun.
        for each in (out, *(other.out for other in transfers if other.begun)):
            each.progress(now)
        if done and transfer.answer:
            # As a small one: it is no sending of this end's, and its serial is the other end's.
            out.link = None
            self.written.append(out)
        elif done:
            self.last_large = out.serial, self.bytes_sent
            if not out.kind & REQ_ACK:
                self.written.append(out)
            self._end_step()
        return pieces

    def output_progressed(self, before: int, now: float) -> None:
        """Extend deadlines: the system took more of the output than the first `before` bytes."""
        for transfer in self.transfers:
            if transfer.begun:
                transfer.out.progress(now)
        last = self.last_large
        if last is not None:
            serial, end = last
            out = self.in_flight.get(serial) or next((each for each in self.written if each.serial == serial), None)
            if out is None or before >= end - ALMOST_SENT:
                self.last_large = None
            elif out.stage == Stage.SENT:
                out.progress(now)

    @property
    def borrows_memory(self) -> bool:
        """True if output that was taken may refer to the application's memory, which may change once its messages end."""
        return any(type(out.body) is not bytes for out in self.written)

    def flushed(self) -> list[Outgoing]:
        """Return the messages that end because the transport wrote the output, and is below its high-water mark."""
        written = self.written
        if written:
            self.written = []
        return written

    def _put(self, frame: bytes) -> None:
        self.output.append(frame)
        self.output_size += len(frame)


def join_small(parts: list[Payload]) -> list[Body]:
    """Join adjacent small parts; large ones stay apart, to save a copy, and those in pieces are written piece by piece."""
    joined: list[Body] = []
    small: list[Body] = []
    for part in parts:
        if len(part) > APART:
            if small:
                joined.append(b"".join(small))
                small = []
            if isinstance(part, Parts):
                joined += part.pieces
            else:
                joined.append(part)
        else:
            small.append(part)  # type: ignore[arg-type]
    if small:
        joined.append(b"".join(small))
    return joined
