"""The state machine of one connection: bytes in, messages out; messages in, bytes out; one next deadline.

It does no I/O. The owner has a `Reader` read from the socket for it, takes `arrived` and `take_output()`, and calls
`link_timers.tick` at its next deadline. This module has the lifecycle of a link, and what it has received. Its sending
half is in output.py, and the state of a peer over all its links (queue, slots, requests) in peer.py, above. Frames are
read in reader.py; runs of small messages are written in runs.py.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Any, ClassVar

from redpoll.errors import ProtocolError
from redpoll.wire.assembly import BodyPool
from redpoll.wire.capabilities import MESSAGE_UNIT, NO_ANNOUNCEMENT, TELLS_RECORD, Announcement
from redpoll.wire.frames import REQ_ACK, RETRY, Control, Goodbye, control_frame
from redpoll.wire.handshake import Handshake
from redpoll.wire.inbound import Arrivals, Inbound
from redpoll.wire.liveness import Liveness, StallDetector
from redpoll.wire.memory import Memory
from redpoll.wire.outgoing import Outgoing
from redpoll.wire.output import PeerT_co, SendingHalf
from redpoll.wire.partial import Incoming
from redpoll.wire.session import RECORD, RECORD_SIZE, Shown
from redpoll.wire.states import ACCEPTING, LEAVING, SENDING, TRANSITIONS, Event, LinkState
from redpoll.wire.window import ReceiveWindow

__all__ = ["Link"]


@dataclass(slots=True, eq=False)
class Link(SendingHalf[PeerT_co]):
    """One connection to a peer. The module's docstring describes the contract with its owner."""

    #: Whether the other end has not announced itself, and so is taken for libchirp: it is a `LibchirpLink`.
    libchirp: ClassVar[bool] = False

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

    stall_detector: StallDetector = field(init=False)

    # Lifecycle

    #: Whether received messages are accepted in the current state.
    accepting: bool = field(init=False, default=False)
    #: Whether messages may be sent, and are accepted, after a goodbye, as `leave()` said.
    keeps_sending: bool = field(init=False, default=False)
    accepts_all: bool = field(init=False, default=False)
    handshake: Handshake | None = field(init=False, default=None)
    remote_identity: bytes | None = field(init=False, default=None)
    #: The last announcement of this end, or None.
    announcement_sent: Announcement | None = field(init=False, default=None)
    #: The last announcement of the other end; `NO_ANNOUNCEMENT` while `libchirp`.
    announced: Announcement = field(init=False, default=NO_ANNOUNCEMENT)
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
        if announcement.max_message_size == 0:
            # Less than the announced unit is not 0; the other end rejects larger messages by closing.
            announcement = announcement._replace(max_message_size=MESSAGE_UNIT - 1)
        self.announced = announcement
        self.max_size = announcement.max_message_size
        self._update_window()
        return False

    def record_received(self, record: bytes) -> None:
        """Note the number of the record under which the other end knows this node."""
        self.record = record
        self._update_window()

    @property
    def _tells_records(self) -> bool:
        """True if both ends announced that they send the number of their record of the other."""
        own = self.announcement_sent
        return own is not None and self.announced.flags & own.flags & TELLS_RECORD != 0

    def _update_window(self) -> None:
        # Messages sent before the other end has its record of this node could not be resent (section 5.6).
        waits = self.record is None and self._tells_records
        self.window.announce(0 if waits else self.announced.window, self.announced.window_bytes)

    def send_record(self, number: int) -> bool:
        """Send the number of the record of the other end, if it asked for that; return whether it did."""
        if self._tells_records:
            self.control(Control.SESSION, body=RECORD + number.to_bytes(RECORD_SIZE, "big"))
        return self._tells_records

    @property
    def epoch(self) -> int | None:
        """The run of the other end's node; libchirp announces none."""
        return self.announced.epoch

    @property
    def remote_run(self) -> tuple[int | None, bytes | None]:
        """The run of the other end's node, and the record under which it knows this node."""
        return self.epoch, self.record

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
        peer = self.peer
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

    # Control frames

    def credit_received(self, body: bytes) -> None:
        """Apply a credit frame. It returns places of unacknowledged messages only."""
        acknowledged = len(self.in_flight)
        if self.transfers:
            acknowledged += sum(1 for out in self.transfers.unbegun() if out.kind & REQ_ACK)
        self.window.credited(body, acknowledged)

    def answer_pings(self) -> None:
        """Answer the pings that were received while the link was not writable: it is now."""
        serials, self.unanswered_pings = self.unanswered_pings, []
        for serial in serials:
            self.control(Control.PONG, serial)
