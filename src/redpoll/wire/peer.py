"""The sending half of a peer, over all its links: queue, requests, deadlines, and the ends of sendings.

A peer outlives its links. What gaining and losing a link does to messages in flight, and to the session that waits for
the next link, is in link_lifecycle.py. Answers end requests in answers.py, and libchirp's confirmations are in libchirp.py.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from itertools import chain
from typing import Any, Protocol

from redpoll.address import Address
from redpoll.errors import (
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
)
from redpoll.wire.frames import REQ_ACK, RETRY, WANTED
from redpoll.wire.inbound import Inbound
from redpoll.wire.link import Link
from redpoll.wire.memory import Memory
from redpoll.wire.outgoing import Outgoing, Stage
from redpoll.wire.requests import Requests
from redpoll.wire.send_errors import not_sent_errors, refusal_error, unsent_error, with_cause
from redpoll.wire.send_queue import SendQueue
from redpoll.wire.session import FORGOTTEN, Session, forgotten
from redpoll.wire.settings import Settings
from redpoll.wire.slots import LinkOwner, SlotPool, Slots
from redpoll.wire.tally import Counters

__all__ = ["ABANDONED_TIMEOUT", "WITHDRAW_GRACE", "Owner", "Peer", "select_link"]


#: Seconds after the deadline in which a redpoll peer can say whether it had begun: a send that it had not begun fails
#: as not sent, which is worth a round trip.
WITHDRAW_GRACE = 0.2

#: Minimum seconds per sending between two looks for what is past its deadline, so that looking takes a small part of
#: the time.
_LOOK = 2e-6

#: Seconds that libchirp has to acknowledge an abandoned message without a timeout, if the node has none either.
ABANDONED_TIMEOUT = 10.0


class Owner(LinkOwner, Protocol):
    """The node, as a peer uses it. All calls return at once."""

    def need_link(self, peer: Peer) -> None:
        """Dial: a message is queued and the peer has no link."""

    def arm(self, peer: Peer, deadline: float) -> None:
        """Call `peer.expire()` at `deadline`, the next one."""

    def on_announcement(self, peer: Peer, link: Link, renewed: bool) -> None:
        """Handle the first announcement on a link of a peer, before any message is sent to it as to a redpoll node.

        Args:
            peer: The peer.
            link: Its link.
            renewed: Whether the peer's node was restarted since the last announcement.
        """


@dataclass(slots=True, eq=False, weakref_slot=True)
class Peer:
    """One peer: an identity at an address, and the messages sent to it, in order."""

    #: Address to dial; None if the node does not listen.
    address: Address | None
    #: Its node identity, 16 bytes; None before its handshake.
    identity: bytes | None
    settings: Settings
    pool: InitVar[SlotPool]
    owner: Owner
    #: The last serial used, 32 bits, over all links.
    serial: int
    #: Number of this end's record of the peer's messages and their outcomes, 64 bits.
    record: int = 0
    #: Whether that was sent to the peer.
    record_sent: bool = field(init=False, default=False)

    counters: Counters = field(init=False, default_factory=Counters)
    memory: Memory = field(init=False)
    slots: Slots = field(init=False)
    #: `slots.unacked`.
    unacked: dict[int, Inbound[Any]] = field(init=False)
    #: Its open links, oldest first.
    links: list[Link[Peer]] = field(init=False, default_factory=list)
    #: The link used for messages.
    link: Link[Peer] | None = field(init=False, default=None)
    #: Messages to be written.
    queue: SendQueue = field(init=False)
    #: Requests whose work is done and whose answer is pending, and requests to resend: by serial, for libchirp by
    #: identity.
    requests: Requests = field(init=False, default_factory=Requests)
    #: When the owner's timer for this peer fires; set by both.
    armed: float | None = field(init=False, default=None)
    epoch: int | None = field(init=False, default=None)
    #: The state that outlives its links.
    session: Session = field(init=False, default_factory=Session)
    #: Why there is no link, while there is none; the cause of sends that expire meanwhile.
    last_error: RedpollError | None = field(init=False, default=None)
    #: When bytes were last received over one of its lost links.
    last_heard: float = field(init=False, default=0.0)

    # For the owner only: futures that wait for room in the window, the host that the last link came in from (None if
    # this end dialled), the certificate on the newest link that has one, whether there ever was a link, and whether one
    # ever broke.
    writable_waiters: list[Any] = field(init=False, default_factory=list)
    host: str | None = field(init=False, default=None)
    certificate: Any = field(init=False, default=None)
    was_linked: bool = field(init=False, default=False)
    broken: bool = field(init=False, default=False)

    def __post_init__(self, pool: SlotPool) -> None:
        self.memory = pool.memory
        self.queue = SendQueue(self.settings, self.memory)
        self.slots = Slots(self.settings, pool, self.counters, self.links, self.owner)
        self.unacked = self.slots.unacked

    # Sending

    def submit(self, out: Outgoing, now: float) -> None:
        """Send a message, at once or after those before it when the window allows; settle it with an error at a limit."""
        link = self.link
        requests = self.requests
        overasked = requests and out.kind & WANTED and requests.count >= self.settings.send_queue_limit
        if link is not None and not self.queue and not overasked and link.admits(out):
            link.transmit(out, self, now)
            deadline = out.deadline
            if deadline is not None and (self.armed is None or deadline < self.armed):
                self.owner.arm(self, deadline)
            return
        limit = (self.settings.send_queue_limit, "requests") if overasked else self.queue.reached(out)
        if limit is not None:
            self.memory.tally.queue_full += 1
            self.fail_unsent(out, QueueFull(out.message, *limit, self.address))
            return
        self._watch(out)
        self.queue.add(out)
        if link is None:
            self.owner.need_link(self)
        elif not link.sending:
            self.pump(now)

    def submit_resent(self, out: Outgoing, now: float) -> None:
        """Send a message that was sent before, maybe to this node, after those before it and at the pace of what is resent.

        The bounds of the queue are not for it: a window limits how many there are.
        """
        self._watch(out)
        self.queue.add(out)
        self.pump(now)

    def _watch(self, out: Outgoing) -> None:
        deadline = out.deadline
        if deadline is not None and (self.armed is None or deadline < self.armed):
            self.owner.arm(self, deadline)

    def pump(self, now: float) -> None:
        """Write queued messages, as far as link and window allow."""
        link = self.link
        if link is None or ((len(self.links) > 1 or not link.sending) and link.drained):
            link = self.link = select_link(self.links, link)
        queue = self.queue
        while queue:
            out = next(iter(queue))
            if link is None:
                self.owner.need_link(self)
                return
            if not link.admits(out):
                return
            if out.kind & RETRY and forgotten(out, link.remote_run):
                self.fail_unsent(out, NotSent(out.message, FORGOTTEN, self.address))
                continue
            paced = out.kind & RETRY and not link.libchirp
            if paced and not link.resends:
                return
            queue.remove(out)
            link.transmit(out, self, now)
            if paced:
                link.note_resent(out)
            # The window may have been freed over another link.
            self.owner.wake(link)

    def next_serial(self, used: Container[int] = ()) -> int:
        """Return the next serial that no message in flight or request has; it is the last one from now on."""
        serial = (self.serial + 1) & 0xFFFFFFFF
        while serial in used or serial in self.requests:
            serial = (serial + 1) & 0xFFFFFFFF
        self.serial = serial
        return serial

    def resending(self, out: Outgoing) -> None:
        """Note that a message is written again, with the serial that it has."""
        self.counters.resent += 1
        if out.kind & WANTED:
            self.requests.forget(out)
        self.session.again.discard(out.serial)

    @property
    def unconfirmed(self) -> int:
        """Number of messages that a peer which did not announce itself has not acknowledged: at most one."""
        count = 0
        for link in self.links:
            if link.libchirp:
                count += len(link.in_flight)
                if link.transfers:
                    count += sum(1 for out in link.transfers.unbegun() if out.kind & REQ_ACK)
        return count

    @property
    def awaits_link(self) -> bool:
        """True if anything waits to be sent or answered: no link is idle."""
        return bool(self.queue or self.requests)

    @property
    def overrun(self) -> bool:
        """True if reading is paused, since more arrived than may wait."""
        return self.slots.inbox.overrun

    @property
    def free_window(self) -> int:
        """Number of small messages that could be written at once; 0 while others wait."""
        link = self.link
        return 0 if link is None or self.queue else link.free_places

    @property
    def ready(self) -> bool:
        """True if a small message would be written at once."""
        link = self.link
        return link is not None and not self.queue and link.ready

    # Ends of sendings

    def drop(self, out: Outgoing) -> None:
        """Take a sending that ends before its answer out of the queue, the requests and the session."""
        out.stage = Stage.ENDED
        out.deadline = None
        if out in self.queue:
            self.queue.remove(out)
        if out.kind & (RETRY | WANTED):
            self.requests.drop(out)
            self.session.again.discard(out.serial)

    def fail(self, out: Outgoing, error: BaseException) -> None:
        """End a sending with an error; do nothing if it has ended."""
        if out.stage == Stage.ENDED:
            return
        if not isinstance(error, Refused):
            self.counters.errors += 1
        self.drop(out)
        out.settle(None, error)

    def fail_unsent(self, out: Outgoing, error: NotSent, cause: BaseException | None = None) -> None:
        """End a sending that the peer does not have; if it was sent before, it may have been handled then."""
        self.fail(out, unsent_error(out, error, self.address, cause))

    def confirmed(self, out: Outgoing) -> None:
        """Apply the acknowledgement of an announced peer: the sending is done, or its answer is pending."""
        if out.stage == Stage.ENDED:
            out.deadline = None
        elif not out.kind & WANTED:
            out.stage = Stage.ENDED
            out.deadline = None
            out.settle(None, None)
        elif out.stage == Stage.WITHDRAWING:
            self.fail(out, NoAnswer(out.message, out.timeout, self.address))
        else:
            self.mark_done(out)
            self.requests.add(out.serial, out)

    @staticmethod
    def mark_done(out: Outgoing) -> None:
        """Note that the work of a request is done and its answer is pending: it is not resent."""
        out.stage = Stage.DONE
        out.body = out.header = b""

    def written(self, out: Outgoing) -> None:
        """End an unacknowledged message that the transport took."""
        # A request to libchirp ends with its answer.
        if not out.kind & WANTED:
            self.confirmed(out)

    def refused(self, out: Outgoing, error: SendError) -> None:
        """Apply the refusal of an announced peer."""
        if isinstance(error, ShuttingDown) and _crossed_goodbye(out):
            self.requeue(out)
            return
        self.counters.refused_by_peer += 1
        self.fail(out, refusal_error(out, error, self.address))

    def awaits_answers(self, link: Link) -> bool:
        """Return True if requests sent over a link of an announced peer are handled and not answered: it closes the link."""
        return not link.libchirp and bool(self.requests) and bool(self.requests.over(link))

    def answer(self, out: Outgoing, message: Inbound[Any]) -> None:
        """End a request with its answer."""
        out.stage = Stage.ENDED
        out.deadline = None
        self.counters.received += 1
        out.settle(message, None)

    def withdraw(self, out: Outgoing, now: float, *, hard: bool = False) -> None:
        """Withdraw a sending whose caller stopped waiting: stop what can be stopped, and settle nothing."""
        stage = out.stage
        if stage == Stage.ENDED:
            return
        link: Link | None = out.link
        if stage == Stage.SENT and link is not None and link.libchirp:
            # libchirp has no cancel frame: until its deadline the message blocks the next one.
            out.stage = Stage.ENDED
            self.requests.drop(out)
            if out.deadline is None and (out.kind & REQ_ACK or link.is_writing(out)):
                patience = self.settings.timeout
                out.timeout = ABANDONED_TIMEOUT if patience is None else patience
                out.deadline = now + out.timeout
                self._watch(out)
            return
        if stage not in (Stage.QUEUED, Stage.DONE):
            self._send_cancel(out, hard)
        self.drop(out)
        out.release_body()

    def _send_cancel(self, out: Outgoing, hard: bool) -> bool:
        """Cancel a message at an announced peer; return True if it was not fully written, so cannot have begun."""
        link: Link | None = out.link
        if link is None or link not in self.links:
            return False
        cut = link.send_cancel(out, hard)
        self.owner.wake(link)
        return cut

    def forget_all(self) -> None:
        """Drop all outcomes: the peer was restarted, and its serials mean other messages now."""
        self.slots.forget_all()
        self.record = (self.record + 1) & 0xFFFFFFFFFFFFFFFF

    # Queue

    def requeue(self, out: Outgoing) -> None:
        """Resend a message that the peer will not handle, or may not have: it goes first, over another link."""
        if out.stage == Stage.WITHDRAWING:
            self.fail_unsent(out, Expired(out.message, out.timeout, "waiting to be resent", self.address))
            return
        out.stage = Stage.QUEUED
        out.link = None
        if out.kind & RETRY and out.kind & WANTED:
            # The peer may have been handling it since the first time, and may answer before it is resent.
            self.requests.forget(out)
            self.requests.add(out.serial, out)
        self.queue.add(out, first=True)

    def fail_queue(self, error: RedpollError, *, once: bool = False) -> None:
        """Fail all queued sendings; with `once`, only those that do not wait for another attempt to dial."""
        failing = [out for out in self.queue if out.once or not once]
        for out, failure in zip(failing, not_sent_errors(failing, error, self.address), strict=True):
            self.fail_unsent(out, failure, error)

    def take_queue(self, *, pinned: bool = False) -> list[Outgoing]:
        """Remove and return queued messages for any node at the address, in order, for the peer that is there now.

        With `pinned`, also those for the node itself, if it said that it is that one.
        """
        moved = [out for out in self.queue if pinned or not out.pinned]
        for out in moved:
            self.queue.remove(out)
            self.requests.forget(out)
        return moved

    # Time

    def _open(self) -> Iterator[Outgoing]:
        """Yield all sendings, in flight before queued ones; some more than once."""
        for link in self.links:
            yield from chain(link.in_flight.values(), link.written, (each.out for each in link.transfers))
        yield from chain(chain.from_iterable(self.requests.values()), self.queue)

    def next_deadline(self) -> float | None:
        """Return the earliest deadline of a sending, or None."""
        return min((out.deadline for out in self._open() if out.deadline is not None), default=None)

    def expire(self, now: float) -> float | None:
        """End what is past its deadline; return when to call again, or None.

        Sendings are not kept by their deadlines, which costs nothing while they end in time; all are looked at here.
        """
        timed = dict.fromkeys(out for out in self._open() if out.deadline is not None)
        for out in [out for out in timed if out.deadline is not None and out.deadline <= now]:
            stage = out.stage
            link: Link | None = out.link
            out.deadline = None
            if stage == Stage.QUEUED:
                expired = Expired(out.message, out.timeout, "waiting to be sent", self.address)
                self.fail_unsent(out, expired, self.last_error)
            elif stage == Stage.DONE:
                self.fail(out, NoAnswer(out.message, out.timeout, self.address))
            elif stage == Stage.SENT and self._send_cancel(out, out.hard):
                self.fail_unsent(out, Expired(out.message, out.timeout, "being written", self.address))
            elif stage == Stage.SENT and link is not None and not link.libchirp and out.kind & REQ_ACK:
                out.stage = Stage.WITHDRAWING
                out.deadline = now + WITHDRAW_GRACE
            else:
                error = ConfirmTimeout(out.message, out.timeout, self.address)
                self.fail(out, error)
                if link is None or not link.libchirp or link not in self.links:
                    continue
                # As libchirp does: a late acknowledgement could not be distinguished from the next message's, and
                # nothing can be written behind a message that it does not read.
                if out.kind & REQ_ACK or link.is_writing(out):
                    verb = "acknowledged" if out.kind & REQ_ACK else "read"
                    late = PeerLost(self.address, f"a message was not {verb} within its timeout")
                    self.owner.close(link, with_cause(late, error))
        following = min((out.deadline for out in timed if out.deadline is not None), default=None)
        return None if following is None else max(following, now + _LOOK * len(timed))

    # The owner's waiters, and its links

    def wake_waiters(self) -> None:
        """Wake what waits for room in the window."""
        waiters, self.writable_waiters = self.writable_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def wake_links(self) -> None:
        """Schedule the output of all links."""
        for link in self.links:
            if link.output or link.transfers or link.written:
                self.owner.wake(link)

    @property
    def idle(self) -> bool:
        """True if no state is kept for this peer."""
        return not (
            self.queue or self.links or self.requests or self.writable_waiters or self.slots.busy or self.resuming
        )

    @property
    def resuming(self) -> bool:
        """True if its last link was lost and its session continues."""
        return self.session.away


def _crossed_goodbye(out: Outgoing) -> bool:
    """Return True if a resend that a stopping node did not begin is for its successor, as its goodbye says of others."""
    link = out.link
    if not out.kind & RETRY or out.stage != Stage.SENT or link is None or link.sending:
        return False
    return all(transfer.out is not out for transfer in link.transfers)


def select_link(links: Sequence[Link[Peer]], present: Link[Peer] | None) -> Link[Peer] | None:
    """Return the link to send over from now on, or None. `links` are oldest first.

    libchirp uses the newest of two. Any open link will do for us, and the present one keeps the order.
    """
    usable = [link for link in links if link.sending]
    if not usable:
        return None
    return present if present in usable else usable[-1]
