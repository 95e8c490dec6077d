"""The state machine of one connection: bytes in, messages out; messages in, bytes out; one next deadline.

It does no I/O. The owner has a `Reader` read from the socket for it, takes `arrived` and `take_output()`, and calls
`link_timers.tick` at its next deadline. The state of a peer over all its links (queue, slots, requests) is in peer.py,
above this module. Frames are read in reader.py; runs of small messages are written in runs.py.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import KW_ONLY, InitVar, dataclass, field
from struct import Struct
from typing import Any, Protocol

from redpoll.address import Address
from redpoll.errors import ProtocolError
from redpoll.wire.assembly import Assembly, BodyPool
from redpoll.wire.capabilities import MESSAGE_UNIT, TELLS_RECORD, Announcement
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
    Goodbye,
    control_frame,
    encode_refusal,
)
from redpoll.wire.handshake import Handshake
from redpoll.wire.inbound import Arrivals, Inbound
from redpoll.wire.liveness import Liveness, StallDetector
from redpoll.wire.memory import Memory
from redpoll.wire.metadata import DEADLINE_BLOCK, Field, millis
from redpoll.wire.outgoing import DONE_OR_ENDED, Body, Outgoing, Payload, Stage, Unawaited
from redpoll.wire.output import ALMOST_SENT, APART, DONE_BELOW, OUTPUT_LIMIT, join_small
from redpoll.wire.partial import Incoming
from redpoll.wire.requests import Requests
from redpoll.wire.send_errors import too_large_error
from redpoll.wire.session import RECORD, RECORD_SIZE, Shown
from redpoll.wire.settings import Settings
from redpoll.wire.states import ACCEPTING, LEAVING, SENDING, TRANSITIONS, Event, LinkState
from redpoll.wire.tally import Counters
from redpoll.wire.transfer import Transfer, Transfers
from redpoll.wire.window import ReceiveWindow, SendWindow

__all__ = ["Link", "LinkPeer"]

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


@dataclass(slots=True, eq=False)
class Link:
    """One connection to a peer. The module's docstring describes the contract with its owner."""

    settings: Settings
    _: KW_ONLY
    #: Whether this end dialled.
    dialled: bool
    now: InitVar[float]
    #: Makes received messages.
    make: type[Inbound[Any]] = Inbound
    #: The owner's connection; not used here.
    connection: Any = None
    #: Memory for large bodies, shared by all links of one event loop.
    body_pool: BodyPool | None = None
    #: Memory account of the node.
    memory: Memory = field(default_factory=Memory)

    #: The `Peer` that the link belongs to; None until the owner knows. The link uses `LinkPeer` of it.
    peer: Any = field(init=False, default=None)
    liveness: Liveness = field(init=False)
    stall_detector: StallDetector = field(init=False)

    # Lifecycle

    state: LinkState = field(init=False, default=LinkState.HANDSHAKE)
    #: Whether messages may be sent, and whether received ones are accepted, in the current state.
    sending: bool = field(init=False, default=False)
    accepting: bool = field(init=False, default=False)
    #: Whether the same holds after a goodbye, as `leave()` said.
    keeps_sending: bool = field(init=False, default=False)
    accepts_all: bool = field(init=False, default=False)
    handshake: Handshake | None = field(init=False, default=None)
    remote_identity: bytes | None = field(init=False, default=None)
    #: The last announcement of this end, or None.
    announcement_sent: Announcement | None = field(init=False, default=None)
    #: The last announcement of the other end; None for libchirp, or while it is not known.
    announced: Announcement | None = field(init=False, default=None)
    #: The session that the other end described.
    shown: Shown | None = field(init=False, default=None)
    #: Number of the record under which the other end knows this node.
    record: bytes | None = field(init=False, default=None)
    #: The other end's goodbye, if it came first.
    goodbye: Goodbye | None = field(init=False, default=None)
    #: Numbers of pings whose answers the owner waits for, to decide a claim of an identity; an empty dict is smaller than a
    #: set.
    pings: dict[int, None] = field(init=False, default_factory=dict)
    #: Numbers of pings received while the link was not writable, at most `MAX_UNANSWERED_PINGS`.
    unanswered_pings: list[int] = field(init=False, default_factory=list)

    # Receiving

    #: Arrived messages and frames, for the owner to take.
    arrived: Arrivals = field(init=False, default_factory=Arrivals)
    #: Messages that have arrived in part.
    incoming: Incoming = field(init=False)
    receive_window: ReceiveWindow = field(init=False)
    bytes_received: int = field(init=False, default=0)
    #: Bytes of large messages that arrived before the link had a peer, charged to the node's inboxes.
    early_bytes: int = field(init=False, default=0)
    #: Number of messages received over this link that have not ended.
    unreleased: int = field(init=False, default=0)
    #: Serial of the last accepted message, resent ones excepted; None if there is none.
    last_serial: int | None = field(init=False, default=None)
    #: Serial of the first message that was not accepted although our goodbye was not sent yet.
    rejected_from: int | None = field(init=False, default=None)
    #: Serials of messages that were resent over another link; if they arrive over this one as well, they are dropped.
    resent_elsewhere: set[int] | None = field(init=False, default=None)

    # Sending

    #: Set by the owner: False while the transport is above its high-water mark.
    writable: bool = field(init=False, default=True)
    window: SendWindow = field(init=False, default_factory=SendWindow)
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

    def __post_init__(self, now: float) -> None:
        settings = self.settings
        self.liveness = Liveness(settings, now)
        self.stall_detector = StallDetector(settings.transfer_timeout)
        self.incoming = Incoming(settings, self.memory)
        self.receive_window = ReceiveWindow(settings.window, settings.window_bytes)

    # Lifecycle

    def start(self, announcement: Announcement | None, port: int | None = None) -> None:
        """Put the handshake and the announcement into the output: one write, as libchirp requires.

        Args:
            announcement: The announcement; None for none, as libchirp.
            port: Port to announce instead of the settings' port.
        """
        frame = Handshake(self.settings.port if port is None else port, self.settings.identity).encode()
        self.announcement_sent = announcement
        if announcement is not None:
            frame += announcement.encode()
        self._put(frame)

    def step(self, event: Event) -> None:
        """Move to the next state.

        Raises:
            ProtocolError: The step is illegal in this state.
        """
        state = TRANSITIONS.get((self.state, event))
        if state is None:
            raise ProtocolError(f"{event.name.lower()} is illegal in link state {self.state.name.lower()}")
        self.state = state
        self.sending = state in SENDING or (self.keeps_sending and state is LinkState.LEAVING)
        self.accepting = state in ACCEPTING or (self.accepts_all and state in LEAVING)

    @property
    def busy(self) -> bool:
        """True if anything on this link has not ended, so that closing it would lose or fail it."""
        return self.unreleased > 0 or bool(self.arrived.messages) or self.unfinished

    @property
    def unfinished(self) -> bool:
        """True if anything is unconfirmed, not written yet, or has arrived in part."""
        return bool(self.in_flight or self.transfers or self.written or self.output or self.incoming.unfinished)

    @property
    def drained(self) -> bool:
        """True if all sent messages have ended at the other end, so that none can be overtaken over another link."""
        return not (self.in_flight or self.transfers or self.window.used)

    def handshake_received(self, handshake: Handshake) -> None:
        """Apply the handshake of the other end."""
        self.step(Event.HANDSHAKE)
        self.handshake = handshake
        self.remote_identity = handshake.identity
        self.liveness.handshake_received()

    def announcement_received(self, announcement: Announcement) -> bool:
        """Apply an announcement of the other end, and return True for the first; a later one replaces window and flags."""
        first = self.announced is None
        if announcement.max_message_size == 0:
            # Less than the announced unit is not 0; the other end rejects larger messages by closing.
            announcement = announcement._replace(max_message_size=MESSAGE_UNIT - 1)
        self.announced = announcement
        self.max_size = announcement.max_message_size
        self._update_window()
        if first and self.state is LinkState.LEAVING:
            self._send_goodbye()
        return first

    def record_received(self, record: bytes) -> None:
        """Note the number of the record under which the other end knows this node."""
        self.record = record
        self._update_window()

    @property
    def _tells_records(self) -> bool:
        """True if both ends announced that they send the number of their record of the other."""
        announced, own = self.announced, self.announcement_sent
        return announced is not None and own is not None and announced.flags & own.flags & TELLS_RECORD != 0

    def _update_window(self) -> None:
        announced = self.announced
        if announced is not None:
            # Messages sent before the other end has its record of this node could not be resent (section 5.6).
            waits = self.record is None and self._tells_records
            self.window.announce(0 if waits else announced.window, announced.window_bytes)

    def send_record(self, number: int) -> bool:
        """Send the number of the record of the other end, if it asked for that; return whether it did."""
        if self._tells_records:
            self.control(Control.SESSION, body=RECORD + number.to_bytes(RECORD_SIZE, "big"))
        return self._tells_records

    @property
    def epoch(self) -> int | None:
        """The run of the other end's node; libchirp announces none."""
        return None if self.announced is None else self.announced.epoch

    @property
    def remote_run(self) -> tuple[int | None, bytes | None]:
        """The run of the other end's node, and the record under which it knows this node."""
        return self.epoch, self.record

    def leave(self, *, accept_all: bool = False, keep_sending: bool = False) -> None:
        """Say goodbye; without effect the second time, or before the handshake.

        Args:
            accept_all: Whether messages that cross the goodbye are handled while the link lasts, because this node
                continues without the link. Otherwise acknowledged messages are handled only if they have arrived, and
                the last serial in the goodbye tells the sender which.
            keep_sending: Whether messages are still sent, to an announced node, until it answers with its goodbye,
                which it does when all its messages have ended: their handlers may need to send it something.
        """
        if (self.state, Event.GOODBYE_SENT) not in TRANSITIONS:
            return
        self.accepts_all = accept_all and self.rejected_from is None
        self.keeps_sending = keep_sending
        self._send_goodbye()
        self.step(Event.GOODBYE_SENT)
        self._flush_credit()

    def mark_resent(self, serial: int) -> bool:
        """Note that a message was resent over another link; return False if more were than can have been in flight here."""
        if self.resent_elsewhere is None:
            self.resent_elsewhere = set()
        self.resent_elsewhere.add(serial)
        return len(self.resent_elsewhere) <= self.settings.window

    def reject_from(self, serial: int) -> None:
        """Accept no message from this serial on; the goodbye, sent later, says so."""
        if self.rejected_from is None:
            self.rejected_from = serial

    def _flush_credit(self) -> None:
        """Send all credit held back: the sender moves to another link when all it sent over this one has ended."""
        self.receive_window.hold_nothing()
        self.credit(0, 0)

    def _send_goodbye(self) -> None:
        last = self.last_serial
        if self.rejected_from is not None:
            last = (self.rejected_from - 1) & 0xFFFFFFFF
            self.incoming.discard_later(last)
        said = Goodbye.ALL if self.accepts_all else Goodbye.NONE if last is None else Goodbye.UP_TO
        self._put(control_frame(Control.GOODBYE, last or 0, body=bytes((said,))))

    def goodbye_received(self, said: Goodbye, last: int, newest: int) -> list[Outgoing]:
        """Apply the other end's goodbye; return the messages that it will not handle and that are safe to resend, in order.

        Messages that were already resent over this link are not among them: the other end may have been handling them
        since the first time, and ends them.

        Args:
            said: What happens to messages that cross the goodbye.
            last: Serial of the last message that the other end accepted.
            newest: The last serial used.
        """
        self.step(Event.GOODBYE_RECEIVED)
        if self.state is LinkState.LEFT:
            self.goodbye = said
        self._flush_credit()
        late: list[Outgoing] = []
        if said is not Goodbye.ALL:
            # By age: a message in handling may be almost all serials old.
            age = (newest - last) & 0xFFFFFFFF
            crossing = [out for out in self.in_flight.values() if not out.kind & RETRY]
            late += [out for out in crossing if said is Goodbye.NONE or (newest - out.serial) & 0xFFFFFFFF < age]
        late += self.transfers.unbegun()
        for out in late:
            self.forget(out)
        return late

    def connection_lost(self) -> None:
        """Close the link without I/O. The peer settles what was in flight."""
        self.step(Event.LOST)
        self.writable = False
        self.output.clear()
        self.output_size = 0
        self.last_large = None
        self.incoming.release_memory()
        self.release_early()
        self.memory.forget(self)

    # Messages received in part

    @property
    def reading_paused(self) -> bool:
        """True if this end has paused reading."""
        peer: LinkPeer | None = self.peer
        return self.incoming.paused or (peer is not None and peer.overrun)

    def charge_early(self, size: int) -> None:
        """Charge a large message that arrived before the link has a peer, whose inbox would be charged."""
        if self.peer is None:
            self.early_bytes += size
            self.memory.inbox_bytes += size

    def release_early(self) -> None:
        """Undo the early charge: the peer's inbox is charged now, or the messages are dropped."""
        self.memory.inbox_bytes -= self.early_bytes
        self.early_bytes = 0

    # Sending

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

    def transmit(self, out: Outgoing, now: float) -> None:
        """Write a message that `admits()` allowed: to the output, or a large one to the transfers."""
        peer: LinkPeer = self.peer
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
            serial = self.number(out)
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

    def number(self, out: Outgoing) -> int:
        """Assign a serial at the time of writing: serials have the order of the wire, which goodbyes rely on."""
        peer: LinkPeer = self.peer
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

    def credit_received(self, body: bytes) -> None:
        """Apply a credit frame. It returns places of unacknowledged messages only."""
        acknowledged = len(self.in_flight)
        if self.transfers:
            acknowledged += sum(1 for out in self.transfers.unbegun() if out.kind & REQ_ACK)
        self.window.credited(body, acknowledged)

    def control(self, control: Control, serial: int = 0, body: bytes = b"") -> None:
        """Write a control frame, unless the other end has not announced itself."""
        if self.state is not LinkState.CLOSED:
            self._put(control_frame(control, serial, body=body))

    def answer_pings(self) -> None:
        """Answer the pings that were received while the link was not writable: it is now."""
        serials, self.unanswered_pings = self.unanswered_pings, []
        for serial in serials:
            self.control(Control.PONG, serial)

    def reannounce(self, window: int, window_bytes: int) -> bool:
        """Announce another window to an announced node, and return the held-back credit that is due under it.

        Returns:
            Whether the window has changed.
        """
        sent = self.announcement_sent
        if sent is None or (sent.window, sent.window_bytes) == (window, window_bytes):
            return False
        self.announcement_sent = sent._replace(window=window, window_bytes=window_bytes)
        self._put(self.announcement_sent.encode())
        if self.state is LinkState.OPEN:
            self.receive_window.announce(window, window_bytes)
        self.credit(0, 0)
        return True

    # Output

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
        transfers = self.transfers
        if not transfers:
            return []
        transfer = transfers[0]
        out = transfer.out
        if out.stage in DONE_OR_ENDED and transfer.begun and not (transfer.whole or transfer.answer):
            # The other end answered after the first piece: it needs no more.
            del transfers[0]
            self.control(Control.CANCEL, out.serial)
            return self.take_output()
        if not transfer.begun:
            if not transfer.answer:
                self.number(out)
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
