"""The sending half of a peer, over all its links: queue, requests, deadlines, and how a sending ends.

A peer outlives its links. What becomes of what was in flight when one comes or goes is in attachment.py, and what of that
waits for the next one in session.py. How libchirp confirms is in libchirp.py.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from redpoll.address import Address
from redpoll.errors import (
    Busy,
    ConfirmTimeout,
    Expired,
    NoAnswer,
    NotSent,
    PeerLost,
    QueueFull,
    RedpollError,
    Refused,
    SendError,
    ShuttingDown,
    Withdrawn,
)
from redpoll.wire.assembly import Assembly
from redpoll.wire.choice import link_to_use
from redpoll.wire.deadlines import Deadlines
from redpoll.wire.frames import Kind
from redpoll.wire.inbound import Inbound
from redpoll.wire.link import Link
from redpoll.wire.outgoing import Outgoing, Stage, weight
from redpoll.wire.owner import Owner
from redpoll.wire.requests import Requests
from redpoll.wire.session import Session
from redpoll.wire.settings import Settings
from redpoll.wire.slot_pool import SlotPool
from redpoll.wire.slots import Slots
from redpoll.wire.tally import Counters
from redpoll.wire.verdicts import because, of_refusal, too_large, unsent

__all__ = ["ABANDONED_FOR", "WITHDRAW_GRACE", "Peer"]

_REQ_ACK = int(Kind.REQ_ACK)
_WANTED = int(Kind.WANTED)
_RETRY = int(Kind.RETRY)
_ACK = int(Kind.ACK)
_ENDED = int(Stage.ENDED)

#: libchirp's data length has 32 bits; its own limit is below that, and nobody tells it to us.
_MAX_PLAIN = 0xFFFFFFFF

#: Seconds that a redpoll peer has, past the deadline, to say whether it had begun: a send that it had not begun fails
#: as not sent, which is worth a round trip.
WITHDRAW_GRACE = 0.2

#: A sending of more bytes than this that failed is taken out of the middle of the queue.
_HEAVY = 64 * 1024

#: Seconds that libchirp has to acknowledge what was given up and had no time of its own, where the node's has no limit.
ABANDONED_FOR = 10.0


class Peer:
    """One peer: an identity at an address. What is sent to it, in order.

    Attributes:
        address: Where it can be dialled; None for a node that does not listen.
        identity: Its node identity, 16 bytes; None until its handshake was seen.
        links: Its live links, oldest first.
        link: The one that messages go to.
        queue: What waits to be written, in order; entries may have ended since.
        requests: Those whose work is done and whose answer has not come: by serial, and for libchirp by identity.
        serial: The last serial that was used, 32 bits, over all links.
        armed: When the owner's timer for this peer rings; kept by both.
        session: What outlives its links; None while neither end has one.
    """

    __slots__ = (
        "address",
        "armed",
        "certificate",
        "counters",
        "deadlines",
        "epoch",
        "held",
        "identity",
        "link",
        "links",
        "memory",
        "owner",
        "queue",
        "queued",
        "queued_bytes",
        "requests",
        "serial",
        "session",
        "settings",
        "slots",
        "starved",
        "trouble",
        "unconfirmed",
        "was_linked",
    )

    def __init__(
        self,
        address: Address | None,
        identity: bytes | None,
        settings: Settings,
        pool: SlotPool,
        owner: Owner,
        serial: int,
    ) -> None:
        self.address = address
        self.identity = identity
        self.settings = settings
        self.owner = owner
        self.serial = serial
        self.counters = Counters()
        self.slots = Slots(settings, pool, self.counters)
        self.memory = pool.memory
        self.held = self.slots.held
        self.links: list[Link] = []
        self.link: Link | None = None
        self.queue: deque[Outgoing] = deque()
        self.queued = 0
        self.queued_bytes = 0
        self.requests = Requests()
        self.deadlines: Deadlines[Outgoing] = Deadlines()
        self.armed: float | None = None
        self.epoch: int | None = None
        self.session: Session | None = None if settings.resume is None else Session()
        #: How many acknowledged messages a libchirp peer has not acknowledged: one at the most.
        self.unconfirmed = 0
        #: Why there is no link, while there is none; the cause of sends that expire meanwhile.
        self.trouble: RedpollError | None = None
        #: For the owner's own use: who waits for room in the window, whether there ever was a link, and the certificate
        #: that the newest link with one showed.
        self.starved: list[Any] = []
        self.certificate: Any = None
        self.was_linked = False

    # Sending

    def submit(self, out: Outgoing, now: float) -> None:
        """Send a message: at once, or when those before it and the window allow; settles it with an error at a bound."""
        link = self.link
        settings = self.settings
        requests = self.requests
        overasked = requests and out.kind & _WANTED and requests.count >= settings.queue_messages
        if link is not None and not self.queued and not overasked and link.admits(out):
            self._transmit(link, out, now)
            if out.deadline is not None:
                self._watch(out.deadline, out)
            return
        memory = self.memory
        size = weight(out)
        full: QueueFull | None = None
        if overasked:
            full = QueueFull(out.message, settings.queue_messages, "requests", self.address)
        elif self.queued >= settings.queue_messages:
            full = QueueFull(out.message, settings.queue_messages, "messages", self.address)
        elif self.queued and self.queued_bytes + size > settings.queue_bytes:
            full = QueueFull(out.message, settings.queue_bytes, "bytes", self.address)
        elif (memory.queues + size > memory.limit or size > _HEAVY) and not memory.admits(size, large=size > _HEAVY):
            full = QueueFull(out.message, memory.limit, "bytes of memory_limit", self.address)
        if full is not None:
            memory.tally.queue_full += 1
            out.deadline = None
            self.fail(out, unsent(out, full, self.address))
        else:
            if out.deadline is not None:
                self._watch(out.deadline, out)
            self.queue.append(out)
            self.queued += 1
            self.queued_bytes += size
            memory.queues += size
            if link is None:
                self.owner.need_link(self)
            elif not link.sending:
                self.pump(now)

    def _watch(self, deadline: float, out: Outgoing) -> None:
        self.deadlines.add(deadline, out)
        armed = self.armed
        if armed is None or deadline < armed:
            self.owner.arm(self, deadline)

    def pump(self, now: float) -> None:
        """Write what waits in the queue, as far as link and window allow."""
        link = self.link
        if link is None or ((len(self.links) > 1 or not link.sending) and link.clear):
            link = self.link = link_to_use(self.links, link)
        queue = self.queue
        while queue:
            out = queue[0]
            if out.stage == _ENDED:
                queue.popleft()
                continue
            if link is None:
                self.owner.need_link(self)
                return
            if not link.admits(out):
                return
            queue.popleft()
            size = weight(out)
            self.queued -= 1
            self.queued_bytes -= size
            self.memory.queues -= size
            self._transmit(link, out, now)
            # What made room may have come over another link than the one that is written to.
            self.owner.wake(link)

    def _transmit(self, link: Link, out: Outgoing, now: float) -> None:
        announced = link.announced
        if announced is None:
            if out.size > _MAX_PLAIN:
                self.fail(out, too_large(out, _MAX_PLAIN, self.address))
                return
            if out.kind & _WANTED and not self.settings.acknowledge:
                # As libchirp's asynchronous nodes do: what tells the request to be done is its answer.
                out.kind &= ~_REQ_ACK
            if out.kind & _REQ_ACK:
                self.unconfirmed += 1
            if out.kind & _WANTED:
                self.requests.add(out.identity, out)
            if now - link.liveness.used > 0.75 * self.settings.reuse_time:
                # The other end may be about to close an idle link: let a probe meet that, not the message (chirp.md 1.7).
                link.probe()
        elif out.size > announced.max_message_size:
            self.fail(out, too_large(out, announced.max_message_size, self.address))
            return
        self.counters.sent += 1
        link.liveness.used = now
        link.transmit(out, now)

    @property
    def places(self) -> int:
        """How many small messages could be written at once; 0 while others wait."""
        link = self.link
        if link is None or self.queued or link.announced is None or not link.writable or not link.sending:
            return 0
        if link.free_bytes() <= 0:
            return 0
        return link.window - link.window_used

    @property
    def ready(self) -> bool:
        """Whether a small message would be written at once."""
        link = self.link
        if link is None or link.announced is not None:
            return self.places > 0
        return link.writable and link.sending and not self.queued and not self.unconfirmed

    # How a sending ends

    def fail(self, out: Outgoing, error: BaseException) -> None:
        """End a sending with an error."""
        out.stage = _ENDED
        if not isinstance(error, Refused):
            self.counters.errors += 1
        # Whoever dropped its future is told of the failure when the last reference goes, and this may hold that one;
        # its error refers to the message.
        if out.deadline is not None:
            out.deadline = None
            self.deadlines.ended(out.size)
        out.settle(None, error)

    def confirmed(self, out: Outgoing) -> None:
        """An announced peer released a message: its sending is done, or its answer is still to come."""
        if out.stage == _ENDED:
            out.deadline = None
            return
        if out.kind & _WANTED:
            if out.stage == Stage.WITHDRAWING:
                self.fail(out, NoAnswer(out.message, out.timeout, self.address))
            else:
                self.done(out)
                self.requests.add(out.serial, out)
            return
        out.stage = _ENDED
        out.deadline = None
        out.settle(None, None)

    @staticmethod
    def done(out: Outgoing) -> None:
        """The work of a request is done, and its answer is to come: it is not sent again."""
        out.stage = Stage.DONE
        out.body = out.header = b""

    def written(self, out: Outgoing) -> None:
        """The transport took an unacknowledged message."""
        if out.kind & _WANTED:
            # A request to libchirp, which ends with its answer.
            return
        out.deadline = None
        if out.stage != _ENDED:
            out.stage = _ENDED
            out.settle(None, None)

    def refused(self, out: Outgoing, error: SendError) -> None:
        """An announced peer refused a message."""
        if isinstance(error, ShuttingDown) and _crossed_goodbye(out):
            self.requeue(out)
            return
        self.counters.refused_by_peer += 1
        if out.stage == _ENDED:
            return
        self.fail(out, of_refusal(out, error, self.address))

    def done_unanswered(self, out: Outgoing) -> None:
        """A request that was sent again had been answered over a link that is lost."""
        if out.stage != _ENDED:
            lost = PeerLost(self.address, "its answer was lost with a link")
            self.fail(out, because(NoAnswer(out.message, out.timeout, self.address), lost))

    def answered(self, message: Inbound[Any]) -> None:
        """An answer came from an announced peer; with the ACK bit it is the acknowledgement too."""
        serial = message.serial
        link = message.link
        message.phase = 1
        waiting, out = self._asked(link, message.identity, serial)
        if out is None:
            self.counters.late += 1
            return
        if message.kind & _ACK and link.in_flight.pop(serial, None) is not None:
            link.window_used -= 1
            link.window_bytes_used -= out.size
        if out.stage == _ENDED or not out.kind & _WANTED:
            self.counters.late += 1
            if message.kind & _ACK:
                self.confirmed(out)
            return
        if waiting:
            self.requests.take(serial)
        self.answer(out, message)

    def _asked(self, link: Link, identity: bytes, serial: int) -> tuple[list[Outgoing] | None, Outgoing | None]:
        """What an answer over a link of an announced peer is for, and the requests whose work is done that it is among."""
        waiting = self.requests.get(serial)
        out = waiting[0] if waiting else link.in_flight.get(serial)
        return waiting, out if out is not None and out.identity == identity else None

    def awaits(self, link: Link, identity: bytes, serial: int) -> bool:
        """Whether a request waits for an answer over a link of an announced peer."""
        _, out = self._asked(link, identity, serial)
        return out is not None and out.stage != _ENDED and out.kind & _WANTED != 0

    def answer_moves(self, link: Link, identity: bytes, serial: int, now: float) -> None:
        """A piece of a large answer came."""
        _, out = self._asked(link, identity, serial)
        if out is not None and out.kind & _WANTED:
            out.progress(now)

    def answer(self, out: Outgoing, message: Inbound[Any]) -> None:
        """End a request with its answer."""
        out.stage = _ENDED
        out.deadline = None
        self.counters.received += 1
        out.settle(message, None)

    def withdraw(self, out: Outgoing, now: float, *, hard: bool = False) -> None:
        """The caller gave up waiting: nothing is settled; what can still be stopped is stopped."""
        stage = out.stage
        if stage == _ENDED:
            return
        out.stage = _ENDED
        link = out.link
        if stage == Stage.SENT and link is not None and link.announced is None:
            # libchirp cannot be asked back: until its deadline the message still stands between us and the next one.
            self.requests.drop(out)
            if out.deadline is None and out.kind & _REQ_ACK:
                patience = self.settings.timeout
                out.timeout = ABANDONED_FOR if patience is None else patience
                out.deadline = now + out.timeout
                self._watch(out.deadline, out)
            return
        out.deadline = None
        if stage == Stage.QUEUED:
            self._unqueue(out)
        elif stage == Stage.DONE:
            self.requests.drop(out)
        else:
            self._ask_back(out, hard)
        out.let_go()

    def _unqueue(self, out: Outgoing) -> None:
        """Count a sending out that ended in the queue; it stands there until it is at the front, or many do."""
        size = weight(out)
        self.queued -= 1
        self.queued_bytes -= size
        self.memory.queues -= size
        queue = self.queue
        while queue and queue[0].stage == _ENDED:
            queue.popleft()
        if len(queue) > 64 and len(queue) > 2 * self.queued:
            self.queue = deque(entry for entry in queue if entry.stage != _ENDED)

    def _ask_back(self, out: Outgoing, hard: bool) -> bool:
        """Tell an announced peer that a message is given up; True if it cannot have begun, as not all of it was written."""
        link = out.link
        if link is None or link not in self.links or link.announced is None:
            return False
        cut = link.recall(out, hard)
        self.owner.wake(link)
        return cut

    # What arrives

    def resent(self, message: Inbound[Any]) -> bool:
        """See `Slots.resent()`."""
        return self.slots.resent(message)

    def cancelled(self, link: Link, serial: int, *, hard: bool) -> None:
        """The peer gave up waiting for one of its messages."""
        part = link.reader.abandon(serial)
        if part is None or part.discarded:
            self.slots.withdraw(serial, hard)
        elif part.kind & _REQ_ACK:
            link.refuse(part, Withdrawn.code, "withdrawn by its sender before all of it was there")
        else:
            link.credit(1, part.size)

    def turned_away(self, link: Link, part: Assembly) -> None:
        """The node has no memory for a message of the peer, of which nothing is kept."""
        self.counters.received += 1
        self.counters.refused += 1
        self.memory.tally.memory_refused += 1
        if part.kind & _REQ_ACK:
            link.refuse(part, Busy.code, "its node is at its memory_limit")
        else:
            link.credit(1, part.size)

    def tell_window(self) -> None:
        """Announce to the peer how much of it may be unreleased here, where it was told another window."""
        for link in self.links:
            if link.reannounce(*self.window):
                self.owner.wake(link)

    @property
    def window(self) -> tuple[int, int]:
        """How many messages of the peer, and bytes, may be unreleased here over a new link: those of lost ones count."""
        messages = max(0, self.settings.window - self.slots.carried)
        size = self.settings.window_bytes - self.slots.carried_bytes
        # A window in bytes admits one message of any size.
        return (messages, size) if size > 0 or not self.slots.carried else (0, 0)

    # What waits

    def requeue(self, out: Outgoing) -> None:
        """Send again what the peer will not handle, or may not have: first, over another link."""
        if out.stage == Stage.WITHDRAWING:
            expired = Expired(out.message, out.timeout, "waiting to be sent again", self.address)
            self.fail(out, unsent(out, expired, self.address))
            return
        out.stage = Stage.QUEUED
        out.link = None
        size = weight(out)
        self.queue.appendleft(out)
        self.queued += 1
        self.queued_bytes += size
        self.memory.queues += size

    def fail_waiting(self, out: Outgoing, error: NotSent, cause: BaseException | None) -> None:
        """End a sending that waits in the queue."""
        out.stage = _ENDED
        if out.size > _HEAVY and self.queue[0] is not out:
            # It would stand there until its turn comes, and its error refers to the message.
            self.queue.remove(out)
        self._unqueue(out)
        self.fail(out, unsent(out, error, self.address, cause))

    def fail_queue(self, error: RedpollError, *, once: bool = False) -> None:
        """Nothing that waits can be sent any more; with `once` only what was not to wait for another dialling."""
        failing = [entry for entry in self.queue if entry.stage != _ENDED and (entry.once or not once)]
        self.deadlines.remove(failing)
        for out in failing:
            out.deadline = None
            self.fail_waiting(out, NotSent(out.message, str(error), self.address), error)

    def take_queue(self) -> list[Outgoing]:
        """Hand over what waits and is for whoever is at the address, in order: to the peer that is there now."""
        moved = [out for out in self.queue if out.stage != _ENDED and not out.pinned]
        self.deadlines.remove(moved)
        self.queue = deque(out for out in self.queue if out.stage != _ENDED and out.pinned)
        self.queued = len(self.queue)
        left = sum(map(weight, self.queue))
        self.memory.queues += left - self.queued_bytes
        self.queued_bytes = left
        return moved

    # Time

    def expire(self, now: float) -> None:
        """End what is past its deadline; then `deadlines.next()` says when to call again."""
        for out in self.deadlines.expire(now):
            stage = out.stage
            link = out.link
            out.deadline = None
            if stage == Stage.QUEUED:
                expired = Expired(out.message, out.timeout, "waiting to be sent", self.address)
                self.fail_waiting(out, expired, self.trouble)
            elif stage == Stage.DONE:
                self.requests.drop(out)
                self.fail(out, NoAnswer(out.message, out.timeout, self.address))
            elif stage == Stage.SENT and self._ask_back(out, out.hard):
                expired = Expired(out.message, out.timeout, "being written", self.address)
                self.fail(out, unsent(out, expired, self.address))
            elif stage == Stage.SENT and link is not None and link.announced is not None and out.kind & _REQ_ACK:
                out.stage = Stage.WITHDRAWING
                out.deadline = now + WITHDRAW_GRACE
                self.deadlines.add(out.deadline, out)
            else:
                self.requests.drop(out)
                error = ConfirmTimeout(out.message, out.timeout, self.address)
                if stage != _ENDED:
                    self.fail(out, error)
                if link is not None and link.announced is None and link in self.links and out.kind & _REQ_ACK:
                    # As libchirp does: an acknowledgement that is still to come could not be told from the next one's.
                    late = PeerLost(self.address, "a message was not acknowledged in time")
                    self.owner.close(link, because(late, error))

    @property
    def idle(self) -> bool:
        """Whether nothing is kept for this peer."""
        return not (self.queued or self.links or self.requests or self.starved or self.slots.busy or self.resuming)

    @property
    def resuming(self) -> bool:
        """Whether its last link was lost and its session goes on without."""
        return self.session is not None and self.session.away


def _crossed_goodbye(out: Outgoing) -> bool:
    """Whether a resend that a stopping node did not begin is for the next one there, as what its goodbye hands back is."""
    link = out.link
    if not out.kind & _RETRY or out.stage != Stage.SENT or link is None or link.sending:
        return False
    return all(transfer.out is not out for transfer in link.transfers)
