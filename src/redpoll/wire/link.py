"""One connection's state machine: bytes in, messages out; messages in, bytes out; one next deadline.

No I/O happens here. The owner reads from the socket into `get_buffer()`, tells `received()`, takes `arrived` and
`take_output()`, and calls `tick()` when `next_deadline()` has come. What belongs to a peer over all its links
(queue, slots, requests) is in peer.py. Frames are read in reader.py; runs of small messages are written in runs.py.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any

from redpoll.errors import PeerLost, ProtocolError
from redpoll.wire.arrival import Arrival
from redpoll.wire.assembly import BodyPool
from redpoll.wire.attachment import met
from redpoll.wire.capabilities import MESSAGE_UNIT, WINDOW_UNIT, Announcement
from redpoll.wire.frames import (
    ACK_ANSWER,
    ACK_REFUSAL,
    PREAMBLE,
    PREAMBLE_SIZE,
    Control,
    Goodbye,
    Kind,
    control_frame,
    encode_refusal,
    is_later,
)
from redpoll.wire.handshake import Handshake
from redpoll.wire.inbound import Inbound
from redpoll.wire.liveness import Liveness
from redpoll.wire.memory import PROGRESS, Memory
from redpoll.wire.metadata import DEADLINE_BLOCK, Field, millis
from redpoll.wire.outgoing import DONE_OR_ENDED, Body, Outgoing, Payload, Stage, Unawaited
from redpoll.wire.output import ALMOST_OUT, APART, DONE_BELOW, OUTPUT_LIMIT, join_small
from redpoll.wire.reader import Reader
from redpoll.wire.session import Shown
from redpoll.wire.settings import Settings
from redpoll.wire.states import LEAVING, SENDING, TAKING, TRANSITIONS, Event, LinkState
from redpoll.wire.transfer import Transfer, Transfers

if TYPE_CHECKING:
    from redpoll.wire.assembly import Assembly
    from redpoll.wire.peer import Peer

__all__ = ["Link"]

_CREDIT = Struct("!IQ4x")
_TIMED = Struct("!16sIIHBHBHI")
_TIMED_EXTRA = DEADLINE_BLOCK.size
_REQ_ACK = int(Kind.REQ_ACK)
_ENDED = int(Stage.ENDED)
_RETRY = int(Kind.RETRY)
_ANSWER = int(Kind.ANSWER)
_TIMED_BIT = int(Kind.METADATA)
_ACK = int(Kind.ACK)


class Link:
    """One connection to a peer. See the module's text for the contract with its owner.

    Attributes:
        dialled: Whether this end dialled.
        peer: Whose link it is; None until the owner knows.
        introduced: What this end said of itself last; None is nothing.
        announced: The other end's last announcement; None means libchirp, or too early to know.
        writable: Kept by the owner: False while the transport is above its high-water mark.
        in_flight: Written and not yet confirmed, by serial, oldest first.
        arrived: Messages for the owner to take.
        long_body: Whether a long body is on its way in.
        held: How many messages that came over this link have not ended.
    """

    __slots__ = (
        "announced",
        "arrival",
        "arrived",
        "arrived_bytes",
        "attention",
        "bodies",
        "bytes_received",
        "bytes_sent",
        "credit_at",
        "credit_bytes",
        "credit_bytes_at",
        "credit_messages",
        "dialled",
        "early_bytes",
        "early_cancels",
        "goodbye",
        "handshake",
        "held",
        "idle_at",
        "in_flight",
        "introduced",
        "last_large",
        "last_serial",
        "liveness",
        "long_body",
        "make",
        "memory",
        "out",
        "out_bytes",
        "out_large",
        "oversized",
        "owner",
        "peer",
        "pings",
        "reader",
        "remote_identity",
        "sending",
        "sends_on",
        "session",
        "settings",
        "shown",
        "state",
        "takes_all",
        "taking",
        "timed",
        "transfers",
        "turned_back",
        "window",
        "window_bytes",
        "window_bytes_used",
        "window_used",
        "writable",
        "written",
    )

    def __init__(
        self,
        settings: Settings,
        *,
        dialled: bool,
        now: float,
        make: type[Inbound[Any]] = Inbound,
        owner: Any = None,
        bodies: BodyPool | None = None,
        memory: Memory | None = None,
    ) -> None:
        self.settings = settings
        self.dialled = dialled
        self.make = make
        #: Memory for large bodies, of all links of one event loop.
        self.bodies = bodies
        self.long_body = False
        #: What all links of one node hold.
        self.memory = Memory() if memory is None else memory
        #: Whether the owner has to look: something waits for memory, or `next_deadline()` is earlier. It resets this.
        self.attention = False
        #: Watches over what arrives in part; made when that is first seen.
        self.arrival: Arrival | None = None
        #: Bytes of large messages that came before the link had a peer, and are charged here.
        self.early_bytes = 0
        #: For the owner's own use: its transport.
        self.owner = owner
        self.state = LinkState.HANDSHAKE
        #: Whether messages may be sent, and whether those that arrive are taken: what the state allows.
        self.sending = False
        self.taking = False
        self.takes_all = False
        self.sends_on = False
        self.peer: Peer | None = None
        self.handshake: Handshake | None = None
        self.remote_identity: bytes | None = None
        self.introduced: Announcement | None = None
        self.announced: Announcement | None = None
        self.liveness = Liveness(settings, now)
        self.reader = Reader(self)
        self.writable = True
        self.in_flight: dict[int, Outgoing] = {}
        self.arrived: list[Inbound[Any]] = []
        #: At least the bytes that `arrived` has: those of the reads that brought it, and of large bodies with their last.
        self.arrived_bytes = 0
        #: Cancel frames that came before the link had a peer: serial, and whether the work is to be cancelled too.
        self.early_cancels: list[tuple[int, bool]] = []
        #: Whether any of `arrived` has a deadline.
        self.timed = False
        #: Bodies of session frames, for the owner to take: proofs that this link is who it claims to be.
        self.session: list[bytes] = []
        #: What the other end told of its session.
        self.shown: Shown | None = None
        #: What it said when it said goodbye first.
        self.goodbye: Goodbye | None = None
        self.held = 0
        #: Numbers of pings that somebody waits for the answer of.
        self.pings: set[int] = set()
        #: The serial of the last message that was taken, one sent again aside; None while there is none.
        self.last_serial: int | None = None
        #: The serial of the first message that came and was not taken, though our goodbye was not said yet.
        self.turned_back: int | None = None
        self.window = self.window_bytes = self.window_used = self.window_bytes_used = 0
        #: Bytes of the message in flight that is larger than the window: there is one at a time, and others beside it.
        self.oversized = 0
        self.credit_messages = self.credit_bytes = 0
        self._keep_credit_back(settings.window, settings.window_bytes)
        self.out: list[Payload] = []
        self.out_bytes = 0
        self.out_large = False
        self.transfers = Transfers()
        #: The serial of the last large body that was written whole, and where it ends: the count of bytes sent with that.
        self.last_large: tuple[int, int] | None = None
        #: Unacknowledged sendings whose bytes were given out and that wait for the transport to take them.
        self.written: list[Outgoing] = []
        self.bytes_received = 0
        self.bytes_sent = 0
        self.idle_at = now + settings.reuse_time

    # Life

    def start(self, announcement: Announcement | None, port: int | None = None) -> None:
        """Put the handshake, and the announcement behind it, into the output: one write, as libchirp demands.

        Args:
            announcement: None is none, as libchirp.
            port: Announced instead of the settings' port.
        """
        frame = Handshake(self.settings.port if port is None else port, self.settings.identity).encode()
        self.introduced = announcement
        if announcement is not None:
            frame += announcement.encode()
        self._put(frame)

    def step(self, event: Event) -> None:
        """Move to the next state.

        Raises:
            ProtocolError: The table has no such step.
        """
        state = TRANSITIONS.get((self.state, event))
        if state is None:
            raise ProtocolError(f"{event.name.lower()} is not legal on a link that is {self.state.name.lower()}")
        self.state = state
        self.sending = state in SENDING or (self.sends_on and state is LinkState.LEAVING)
        self.taking = state in TAKING or (self.takes_all and state in LEAVING)

    @property
    def busy(self) -> bool:
        """Whether anything on this link has not ended: closing it would lose or fail something."""
        return self.held > 0 or bool(self.arrived) or self.unfinished

    @property
    def unfinished(self) -> bool:
        """Whether anything is on its way: sent and not confirmed, not written yet, or here in part."""
        return bool(self.in_flight or self.transfers or self.written or self.out or self.reader.unfinished)

    @property
    def clear(self) -> bool:
        """Whether all that was sent has ended at the other end, so that what goes over another link cannot overtake it."""
        places = self.window_used if self.announced is not None else 0
        return not (self.in_flight or self.transfers or places)

    def hear(self, handshake: Handshake) -> None:
        """Take the other end's handshake."""
        self.step(Event.HANDSHAKE)
        self.handshake = handshake
        self.remote_identity = handshake.identity
        self.liveness.open()

    def announce(self, announcement: Announcement) -> None:
        """Take the other end's announcement, the first or a later one: window and flags are replaced."""
        first = self.announced is None
        if announcement.max_message_size == 0:
            # Less than the unit it is told in, so not nothing: what is above that the other end refuses by closing.
            announcement = announcement._replace(max_message_size=MESSAGE_UNIT - 1)
        self.announced = announcement
        self.window = announcement.window
        self.window_bytes = announcement.window_bytes
        if first and self.state is LinkState.LEAVING:
            self._say_goodbye()
        if first and self.peer is not None:
            met(self.peer, self)

    def leave(self, *, take_all: bool = False, sends_on: bool = False) -> None:
        """Say goodbye; nothing happens twice, nor before the handshake.

        Args:
            take_all: Whether what crosses the goodbye is handled, as long as the link is there: this node goes on, only
                without the link. Else messages that are to be acknowledged are handled if they have arrived; what comes
                later is not, and its sender is told by the last serial.
            sends_on: Whether messages of an announced node's are still sent until it answers, which it does when all
                that it sent has ended: what works on that may have to send it something.
        """
        if (self.state, Event.GOODBYE_SENT) not in TRANSITIONS:
            return
        self.takes_all = take_all and self.turned_back is None
        self.sends_on = sends_on and self.announced is not None
        if self.announced is not None:
            self._say_goodbye()
        self.step(Event.GOODBYE_SENT)
        self._credit_at_once()

    def turn_back(self, serial: int) -> None:
        """Take no message from this serial on: the goodbye, which is to come, says so."""
        if self.turned_back is None:
            self.turned_back = serial

    def _credit_at_once(self) -> None:
        """Keep no credit back any more: the sender moves to another link when all that it sent here has ended."""
        self.credit_at = self.credit_bytes_at = 1
        self.credit(0, 0)

    def _say_goodbye(self) -> None:
        last = self.last_serial
        if self.turned_back is not None:
            last = (self.turned_back - 1) & 0xFFFFFFFF
            self.reader.discard_later(last)
        said = Goodbye.ALL if self.takes_all else Goodbye.NONE if last is None else Goodbye.UP_TO
        self._put(control_frame(Control.GOODBYE, last or 0, body=bytes((said,))))

    def left(self, said: Goodbye, last: int) -> list[Outgoing]:
        """Take the other end's goodbye; return what it will not handle and is safe to send again, in order.

        Not what was sent again over this link already: the other end may be at it since the first time, and ends it.

        Args:
            said: What it said of messages that cross its goodbye.
            last: The serial of the last message that it took.
        """
        self.step(Event.GOODBYE_RECEIVED)
        if self.state is LinkState.LEFT:
            self.goodbye = said
        self._credit_at_once()
        late: list[Outgoing] = []
        if said is not Goodbye.ALL:
            crossing = [out for out in self.in_flight.values() if not out.kind & _RETRY]
            late += [out for out in crossing if said is Goodbye.NONE or is_later(out.serial, last)]
        late += self.transfers.unbegun()
        for out in late:
            self.forget(out)
        return late

    def lost(self) -> None:
        """The connection is gone. What was in flight is for the peer to settle."""
        self.step(Event.LOST)
        self.writable = False
        self.out.clear()
        self.out_bytes = 0
        self.last_large = None
        self.reader.let_go()
        self.claimed()
        self.memory.forget(self)

    # What arrives in part

    @property
    def stands_still(self) -> bool:
        """Whether it is this end that does not read."""
        peer = self.peer
        return self.reader.waits or (peer is not None and peer.slots.overrun)

    def watch_arrival(self) -> None:
        """A large body has begun: look after it, if that is not done yet."""
        arrival = self.arrival
        if arrival is None or arrival.at is None:
            timeout = self.settings.transfer_timeout
            if timeout is None:
                return
            if arrival is None:
                arrival = self.arrival = Arrival(timeout)
            arrival.watch(self.reader.oldest, self.bytes_received, self.liveness.heard)
            self.attention = True

    def came_early(self, size: int) -> None:
        """A large message is here; without a peer it waits in no inbox, but it is held."""
        if self.peer is None:
            self.early_bytes += size
            self.memory.inboxes += size

    def claimed(self) -> None:
        """What came early waits here no longer: the link has its peer, whose inbox is charged, or nothing of it is taken."""
        self.memory.inboxes -= self.early_bytes
        self.early_bytes = 0

    # Sending

    def admits(self, out: Outgoing) -> bool:
        """Whether a message may be written now: state, transport and the other end's window allow it."""
        if not self.writable or self.out_bytes > OUTPUT_LIMIT or not self.sending:
            return False
        if self.announced is None:
            # One unconfirmed message toward libchirp, which has one buffer for acknowledgements (chirp.md 1.6), and
            # nothing that would overtake a large one. What is sent again to a node that announced itself before waits
            # until it does so here: without the retry bit it would be done again.
            peer = self.peer
            if self.transfers or (peer is not None and out.kind & _RETRY and peer.epoch is not None):
                return False
            return not (out.kind & _REQ_ACK and peer is not None and peer.unconfirmed)
        if self.window_used >= self.window or (self.transfers and self.settings.in_order):
            return False
        size, limit = out.size, self.window_bytes
        if self.window_bytes_used + size <= limit:
            return True
        if size > limit:
            return self.free_bytes() > 0 and not self.oversized
        free = self.free_bytes()
        if self.oversized:
            return size <= free
        # The other end may keep back credit for less than a quarter of the window: what is used then is no obstacle.
        return size <= free or free * 4 >= limit * 3

    def free_bytes(self) -> int:
        """Bytes of the other end's window that are free, beside one message that is larger than all of it."""
        self._look_at_oversized()
        return self.window_bytes - (self.window_bytes_used - self.oversized)

    def _look_at_oversized(self) -> None:
        # What ended took its bytes along; those beside it keep within the window, so they have fewer.
        if self.window_bytes_used < self.oversized:
            self.oversized = 0

    def transmit(self, out: Outgoing, now: float) -> None:
        """Write a message, which `admits()` allowed: to the output, or a large one to the transfers."""
        kind = out.kind
        body = out.body
        size = len(body)
        out.link = self
        out.stage = 1
        if self.oversized:
            self._look_at_oversized()
        if out.size > self.window_bytes and self.announced is not None:
            self.oversized = out.size
        # libchirp has no window, but the other end may still announce itself, and then counts this too.
        self.window_used += 1
        self.window_bytes_used += out.size
        if size > self.settings.fragment_size:
            plain = self.announced is None
            kind = kind & _REQ_ACK if plain else kind
            self.transfers.append(Transfer(out, kind, self.settings.fragment_size, whole=plain))
            return
        serial = self._number(out)
        if self.announced is None:
            self._transmit_plain(out)
            return
        header = out.header
        deadline = out.deadline
        output = self.out
        if deadline is not None and kind & _REQ_ACK:
            self.out_bytes += _TIMED.size + out.size
            left = int((deadline - now) * 1000.0)
            if not 0 <= left <= 0xFFFFFFFF:
                left = millis(deadline - now)
            output.append(
                _TIMED.pack(out.identity, serial, size + _TIMED_EXTRA, len(header), kind | _TIMED_BIT, 7, 1, 4, left)
            )
        else:
            self.out_bytes += PREAMBLE_SIZE + out.size
            output.append(PREAMBLE.pack(out.identity, serial, size, len(header), kind))
        if header:
            output.append(header)
        if size:
            output.append(body)
        if size > APART:
            self.out_large = True
            self.last_large = serial, self.bytes_sent + self.out_bytes
        if not kind & _REQ_ACK:
            if self.out_bytes > DONE_BELOW:
                self.written.append(out)
            else:
                out.stage = _ENDED
                out.deadline = None
                out.settle(None, None)

    def _transmit_plain(self, out: Outgoing) -> None:
        """Toward a node that did not announce itself: libchirp's bytes, and none of ours."""
        kind = out.kind & _REQ_ACK
        self._put(PREAMBLE.pack(out.identity, out.serial, len(out.body), len(out.header), kind) + out.header)
        if len(out.body):
            self._put_body(out.body)
            if self.out_large:
                self.last_large = out.serial, self.bytes_sent + self.out_bytes
        if not kind:
            self.written.append(out)

    def _number(self, out: Outgoing) -> int:
        """Give a message its serial as it is written: serials are in the order of the wire, which goodbyes rely on."""
        peer: Peer = self.peer  # type: ignore[assignment]
        if out.kind & _RETRY and self.announced is not None:
            serial = out.serial
            peer.counters.resent += 1
            if peer.session is not None:
                peer.session.again.discard(serial)
        else:
            peer.serial = out.serial = serial = (peer.serial + 1) & 0xFFFFFFFF
        if out.kind & _REQ_ACK:
            self.in_flight[serial] = out
        return serial

    def forget(self, out: Outgoing) -> None:
        """Take a sending off the link: its place in the window comes back, its fragments end."""
        if self.in_flight.get(out.serial) is out:
            del self.in_flight[out.serial]
        self.window_used -= 1
        self.window_bytes_used -= out.size
        self.transfers.stop(out)

    def recall(self, out: Outgoing, hard: bool) -> bool:
        """Tell an announced node that a message is given up; True if it cannot have begun, as not all of it was written.

        Args:
            out: The message.
            hard: Whether work that has begun is to be cancelled.
        """
        transfer = self.transfers.stop(out)
        if transfer is not None and not transfer.begun:
            self.forget(out)
        elif transfer is not None or out.kind & _REQ_ACK:
            self.control(Control.CANCEL, out.serial, b"\x01" if hard else b"")
        return transfer is not None

    # Ends of received messages, and answers

    def acknowledge(self, message: Inbound[Any]) -> None:
        """Tell the sender that the work is done."""
        if self.announced is None:
            self._put(PREAMBLE.pack(message.identity, self._next_serial(), 0, 0, _ACK))
        else:
            self.out.append(PREAMBLE.pack(message.identity, message.serial, 0, 0, _ACK))
            self.out_bytes += PREAMBLE_SIZE

    def refuse(self, message: Inbound[Any] | Assembly, code: int, text: str) -> None:
        """Tell an announced sender why the work was not done. libchirp cannot be told."""
        if self.announced is not None:
            body = encode_refusal(code, text)
            self._put(PREAMBLE.pack(message.identity, message.serial, len(body), 0, ACK_REFUSAL) + body)

    def answer(
        self, message: Inbound[Any], body: Payload, header: bytes = b"", *, ends: bool, out: Outgoing | None = None
    ) -> None:
        """Send an announced node the answer that it wanted; it waits for no place in the window.

        Args:
            message: What is answered.
            body: The answer; never acknowledged.
            header: The answer's header.
            ends: Whether this is the acknowledgement as well.
            out: Settled when the answer was written, if somebody waits for that.
        """
        kind = ACK_ANSWER if ends else _ANSWER
        size = len(body)
        if size > self.settings.fragment_size or (size > APART and not self.writable):
            # Also what would heap up in the transport: it goes when there is room.
            if out is None:
                out = Unawaited()
                out.prepare(message, body, 0, None, None)
                out.header = header
            out.link = self
            out.stage = 1
            out.serial = message.serial
            self.transfers.append(Transfer(out, kind, self.settings.fragment_size, answer=True))
            return
        self.out.append(PREAMBLE.pack(message.identity, message.serial, size, len(header), kind))
        self.out_bytes += PREAMBLE_SIZE
        if header:
            self._put(header)
        if size:
            self._put_body(body)
        if out is not None:
            self.written.append(out)

    def credit(self, messages: int, size: int) -> None:
        """Give an announced sender back the places of unacknowledged messages: a frame for a quarter of the window."""
        self.credit_messages += messages
        self.credit_bytes += size
        if (
            self.credit_messages >= self.credit_at or self.credit_bytes >= self.credit_bytes_at
        ) and self.announced is not None:
            self._put(control_frame(Control.CREDIT, body=_CREDIT.pack(self.credit_messages, self.credit_bytes)))
            self.credit_messages = self.credit_bytes = 0

    def credited(self, body: bytes) -> None:
        """Take places back that a credit frame returns: of unacknowledged messages, as no others' come back that way."""
        messages, size = _CREDIT.unpack(body)
        acknowledged = len(self.in_flight)
        if self.transfers:
            acknowledged += sum(1 for out in self.transfers.unbegun() if out.kind & _REQ_ACK)
        if messages > self.window_used - acknowledged or size > self.window_bytes_used:
            raise ProtocolError(f"credit for {messages} messages of {size} bytes, which is more than was sent")
        self.window_used -= messages
        self.window_bytes_used -= size

    def control(self, control: Control, serial: int = 0, body: bytes = b"") -> None:
        """Write a control frame; only announced nodes get any but the announcement."""
        if self.announced is not None and self.state is not LinkState.CLOSED:
            self._put(control_frame(control, serial, body=body))

    def probe(self) -> None:
        """Write libchirp's NOOP, which keeps an idle link alive at its end and asks for nothing."""
        self._put(control_frame(Control.ANNOUNCE, self._next_serial()))

    def reannounce(self, window: int, window_bytes: int) -> bool:
        """Tell an announced node another window; credit that was kept back for the former one goes along.

        Returns:
            Whether there was anything to tell.
        """
        told = self.introduced
        if self.announced is None or told is None or (told.window, told.window_bytes) == (window, window_bytes):
            return False
        self.introduced = told._replace(window=window, window_bytes=window_bytes)
        self._put(self.introduced.encode())
        if self.state is LinkState.OPEN:
            self._keep_credit_back(window, window_bytes)
        self.credit(0, 0)
        return True

    def _keep_credit_back(self, window: int, window_bytes: int) -> None:
        """Give credit for a quarter of a window at a time; of its bytes as they are announced, which is rounded."""
        self.credit_at = max(1, window // 4)
        self.credit_bytes_at = max(1, window_bytes // WINDOW_UNIT * WINDOW_UNIT // 4)

    # Output

    def take_output(self) -> list[Body]:
        """Return what is to be written now, small frames joined, each large body by itself."""
        out = self.out
        if not out or (self.transfers and self.transfers[0].begun_whole):
            return []
        self.bytes_sent += self.out_bytes
        self.out_bytes = 0
        if self.out_large:
            self.out_large = False
            parts = join_small(out)
        else:
            # Without a large one none is in pieces.
            parts = [out[0] if len(out) == 1 else b"".join(out)]  # type: ignore[list-item, arg-type]
        # The list stays: a run whose messages are made by what itself sends may be adding to it.
        out.clear()
        return parts

    def take_fragment(self, now: float) -> list[Body]:
        """Return the next piece of the next large body, in turn; to be called while the transport is writable."""
        transfers = self.transfers
        if not transfers:
            return []
        transfer = transfers[0]
        out = transfer.out
        if out.stage in DONE_OR_ENDED and transfer.begun and not (transfer.whole or transfer.answer):
            # The other end knew it by its first piece, and has answered: it needs no more of it.
            del transfers[0]
            self.control(Control.CANCEL, out.serial)
            return self.take_output()
        if not transfer.begun:
            if not transfer.answer:
                self._number(out)
            block = b""
            if out.deadline is not None and out.kind & _REQ_ACK and not transfer.whole:
                block = DEADLINE_BLOCK.pack(7, Field.DEADLINE, 4, millis(out.deadline - now))
            transfer.begin(block)
        pieces, done = transfers.take()
        self.bytes_sent += sum(map(len, pieces))
        # The link is theirs in turns: while it moves, none of those that have begun stands still.
        for each in (out, *(other.out for other in transfers if other.begun)):
            each.progress(now)
        if done:
            self.last_large = out.serial, self.bytes_sent
            if not out.kind & _REQ_ACK:
                self.written.append(out)
        return pieces

    def moved(self, before: int, now: float) -> None:
        """More of the output is with the system than `before`, a count of bytes: what was on its way then has moved."""
        for transfer in self.transfers:
            if transfer.begun:
                transfer.out.progress(now)
        last = self.last_large
        if last is not None:
            serial, end = last
            out = self.in_flight.get(serial) or next((each for each in self.written if each.serial == serial), None)
            if out is None or before >= end - ALMOST_OUT:
                self.last_large = None
            elif out.stage == Stage.SENT:
                out.progress(now)

    def flushed(self) -> list[Outgoing]:
        """The transport took the output and is below its high-water mark: return the sendings that end with that."""
        written = self.written
        if written:
            self.written = []
        return written

    def _put(self, frame: bytes) -> None:
        self.out.append(frame)
        self.out_bytes += len(frame)

    def _put_body(self, body: Payload) -> None:
        self.out.append(body)
        self.out_bytes += len(body)
        if len(body) > APART:
            self.out_large = True

    def _next_serial(self) -> int:
        peer = self.peer
        if peer is None:
            return 0
        peer.serial = (peer.serial + 1) & 0xFFFFFFFF
        return peer.serial

    # Time

    def next_deadline(self) -> float:
        """When `tick()` has something to do."""
        alive = self.liveness.next_deadline(self.announced is not None)
        due = self.idle_at if alive is None else min(alive, self.idle_at)
        watched = None if self.arrival is None else self.arrival.at
        return due if watched is None else min(due, watched)

    def tick(self, now: float) -> PeerLost | bool:
        """Do what time demands.

        Returns:
            The error to close the link with if the other end is gone; else whether it has just become suspect.
        """
        if now >= self.idle_at:
            silent = now - self.liveness.heard >= self.settings.reuse_time
            if silent and self.reader.unfinished and not self.stands_still:
                return self._too_slow("a message stopped arriving")
            self._look_idle(now)
        if self.handshake is not None and self._hardly_arrives(now):
            timeout = self.settings.transfer_timeout
            return self._too_slow(f"a message hardly arrives: less than {PROGRESS} bytes of it in {timeout:g} s")
        verdict = self.liveness.tick(now, self.announced is not None)
        if isinstance(verdict, str):
            return PeerLost(self.peer.address if self.peer is not None else None, verdict)
        if verdict is not None:
            self.control(Control.PING)
        return verdict is Liveness.SUSPECT

    def _hardly_arrives(self, now: float) -> bool:
        timeout = self.settings.transfer_timeout
        if timeout is None or (self.arrival is None and not self.reader.unfinished):
            return False
        if self.arrival is None:
            self.arrival = Arrival(timeout)
        excused = self.stands_still or self.reader.stalled
        return self.arrival.stalled(self.reader.oldest, self.bytes_received, now, excused=excused)

    def _too_slow(self, reason: str) -> PeerLost:
        self.memory.tally.slow_senders += 1
        return PeerLost(self.peer.address if self.peer is not None else None, reason)

    def _look_idle(self, now: float) -> None:
        """Say goodbye on a link that carried nothing for `reuse_time` and on which nothing is open."""
        peer = self.peer
        reuse = self.settings.reuse_time
        unused_at = self.liveness.used + reuse
        if unused_at > now:
            self.idle_at = unused_at
            return
        self.idle_at = now + reuse / 4
        if not self.busy and (peer is None or not (peer.queued or peer.requests)):
            self.leave(take_all=True)
