"""The receiving half of a peer: messages wait in an inbox, begin in order as slots become free, and end once.

Acknowledgements, refusals, answers and credit are written here, since they follow from how a message ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from redpoll.errors import PeerLost, RedpollError, Withdrawn
from redpoll.wire.duplicates import RecentOutcomes
from redpoll.wire.frames import ACK, ANSWERED, REQ_ACK, RETRY, WANTED, refusal_text
from redpoll.wire.inbound import Inbound, Phase
from redpoll.wire.inbox import Inbox
from redpoll.wire.link import Link
from redpoll.wire.memory import Memory
from redpoll.wire.outgoing import Payload
from redpoll.wire.settings import Settings
from redpoll.wire.states import LinkState
from redpoll.wire.tally import Counters

__all__ = ["LinkOwner", "SlotPool", "Slots"]

_ENDED = int(Phase.ENDED)
_CLOSED = LinkState.CLOSED


class LinkOwner(Protocol):
    """The owner of the links, as slots need it. Both calls return at once."""

    def wake(self, link: Link) -> None:
        """Write the output of a link, which was produced outside of `received()` and `tick()`."""

    def close(self, link: Link, error: RedpollError) -> None:
        """Close a link because of an error."""


@dataclass(slots=True, eq=False)
class SlotPool:
    """The slots of a node, over all its peers."""

    #: Number of slots.
    limit: int
    #: Memory account of the node.
    memory: Memory = field(default_factory=Memory)
    #: Number of slots that hold a message.
    used: int = field(init=False, default=0)
    #: Number of unreleased messages that were received over lost links.
    carried: int = field(init=False, default=0)

    @property
    def free(self) -> int:
        """Number of free slots."""
        return self.limit - self.used


@dataclass(slots=True, eq=False)
class Slots:
    """The unreleased messages of one peer, over all its links."""

    settings: Settings
    pool: SlotPool
    counters: Counters
    #: The peer's open links, oldest first; the peer changes the list.
    links: Sequence[Link]
    owner: LinkOwner
    #: Maximum of `running`, the number of messages in slots.
    limit: int = field(init=False)
    running: int = field(init=False, default=0)
    #: The messages that wait.
    inbox: Inbox = field(init=False)
    #: `inbox.unacked`.
    unacked: dict[int, Inbound[Any]] = field(init=False)
    #: Size of the messages received over lost links that waited or are to be acknowledged, and these messages.
    carried_bytes: int = field(init=False, default=0)
    _carried: set[Inbound[Any]] = field(init=False, default_factory=set)
    #: Outcomes of messages that may be resent; created with the first one.
    outcomes: RecentOutcomes | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.limit = self.settings.slots
        self.inbox = Inbox(self.settings, self.pool.memory, self.counters)
        self.unacked = self.inbox.unacked

    @property
    def busy(self) -> bool:
        """True if any message waits or is handled."""
        return self.running > 0 or self.inbox.waiting > 0

    # Beginning

    def begin(self, now: float) -> Inbound[Any] | None:
        """Return the next message, now in a slot; None if none waits or no slot is free."""
        pool = self.pool
        if self.running >= self.limit or pool.used >= pool.limit:
            return None
        self.running += 1
        pool.used += 1
        return self.next(now)

    def next(self, now: float) -> Inbound[Any] | None:
        """Return the next message, in the slot of one that `finish()` ended; if there is none, the slot is freed."""
        inbox = self.inbox
        while inbox:
            message = inbox.popleft()
            if not inbox.irregular:
                return message
            frame = message.frame
            if message.phase:
                # It was withdrawn.
                inbox.withdrawn -= 1
            elif len(frame) > 6 and (due := frame[6]) is not None and due <= now:
                self._refuse(message, Withdrawn.code, "its deadline passed before it began")
            else:
                message.begun = True
                return message
        self.free_slot()
        return None

    def free_slot(self) -> None:
        """Free a slot: of a message that ends, or that `finish()` left to the caller."""
        self.running -= 1
        self.pool.used -= 1

    def begin_many(self, now: float, limit: int) -> list[Inbound[Any]]:
        """Return up to `limit` messages, all in slots."""
        limit = min(limit, self.limit - self.running, self.pool.limit - self.pool.used)
        if limit <= 0:
            return []
        inbox = self.inbox
        if inbox.irregular:
            batch: list[Inbound[Any]] = []
            while inbox and len(batch) < limit:
                self.running += 1
                self.pool.used += 1
                message = self.next(now)
                if message is not None:
                    batch.append(message)
            return batch
        if len(inbox) <= limit:
            batch = list(inbox)
            inbox.clear()
        else:
            take = inbox.popleft
            batch = [take() for _ in range(limit)]
        self.running += len(batch)
        self.pool.used += len(batch)
        return batch

    def put_back(self, messages: Sequence[Inbound[Any]]) -> None:
        """Return messages that no one has seen to the front of the inbox, and free their slots."""
        self.running -= len(messages)
        self.pool.used -= len(messages)
        self.inbox.put_back(messages)

    # Ends

    def release(self, message: Inbound[Any], kind: int = ACK) -> bool:
        """Release a message: free its slot, and acknowledge it as `kind` says. Return False if it had ended."""
        if message.phase:
            return False
        self.running -= 1
        self.pool.used -= 1
        self.finish(message, kind)
        return True

    def finish(self, message: Inbound[Any], kind: int = ACK) -> None:
        """Release a message whose slot the caller keeps, to begin the next one in it."""
        message.phase = _ENDED
        link: Link = message.link
        link.unreleased -= 1
        if link.state is _CLOSED:
            self.free_carried(message)
        frame = message.frame
        if not frame[4] & REQ_ACK:
            link.credit(1, frame[2])
        else:
            self._note_outcome(message, None)
            link.acknowledge(message, kind)

    def refuse(self, message: Inbound[Any], code: int, text: str) -> bool:
        """Refuse a message: free its slot, and send the reason to an announced sender. Return False if it had ended."""
        if message.phase:
            return False
        self.free_slot()
        self._refuse(message, code, text)
        return True

    def refuse_waiting(self, message: Inbound[Any], code: int, text: str) -> bool:
        """Refuse a message in the inbox. Return False if it has begun, or had ended."""
        if message.phase or message not in self.inbox:
            return False
        self._refuse_waiting(message, code, text)
        return True

    def _refuse_waiting(self, message: Inbound[Any], code: int, text: str) -> None:
        """Refuse a message in the inbox, or one of this read: free its place in the window and its memory."""
        self._refuse(message, code, text)
        self.inbox.withdraw(message)

    def _refuse(self, message: Inbound[Any], code: int, text: str) -> None:
        message.phase = _ENDED
        self.counters.refused += 1
        link: Link = message.link
        link.unreleased -= 1
        if link.state is _CLOSED:
            self.free_carried(message)
        if message.kind & REQ_ACK:
            text = refusal_text(text)
            self._note_outcome(message, (code, text))
            link.refuse(message, code, text)
        else:
            link.credit(1, message.body_size)

    def refuse_all_waiting(self, code: int, text: str) -> None:
        """Refuse all messages in the inbox."""
        for message in self.inbox.take_all():
            self._refuse(message, code, text)

    def reject_arrived(self, link: Link, code: int, text: str, *, promised: bool) -> None:
        """Reject messages that a link received, before they are in the inbox.

        Those received before our goodbye from a node that understands it get no reply: the goodbye will say that they
        were not accepted, and they are sent to the next node there. Those that cannot be resent that way are refused.

        Args:
            link: The link.
            code: Code of the refusal.
            text: Text of the refusal.
            promised: Whether to refuse also those begun before our goodbye, which promised to handle them.
        """
        self.drop_withdrawn(link)
        promises, refused = [], []
        for message in link.arrived.messages:
            if link.accepting and not link.libchirp and message.kind & (REQ_ACK | RETRY) == REQ_ACK:
                if self.unacked.get(message.serial) is message:
                    del self.unacked[message.serial]
                link.reject_from(message.serial)
            elif not promised and not link.accepting and message.kind & REQ_ACK:
                promises.append(message)
            else:
                refused.append(message)
        link.arrived.messages = refused
        self.refuse_arrived(link, code, text)
        link.arrived.messages = promises

    def refuse_arrived(self, link: Link, code: int, text: str) -> None:
        """Refuse all messages that a link received, before they are in the inbox."""
        self.drop_withdrawn(link)
        messages, link.arrived.messages = link.arrived.messages, []
        self.counters.received += len(messages)
        link.unreleased += len(messages)
        for message in messages:
            self._refuse(message, code, text)

    def release_with_answer(self, message: Inbound[Any], answer: Payload) -> None:
        """Release a message with its answer: for an announced peer both are one frame."""
        self.free_slot()
        self.finish_with_answer(message, answer)

    def finish_with_answer(self, message: Inbound[Any], answer: Payload) -> None:
        """Release a message with its answer, when the caller keeps the slot."""
        message.phase = _ENDED
        link: Link = message.link
        link.unreleased -= 1
        self._note_outcome(message, None)
        link.answer(message, answer, ends=True)

    def release_many(self, messages: Iterable[Inbound[Any]]) -> None:
        """Release a batch of `begin_many()`; the places of unacknowledged messages are returned together."""
        link: Link | None = None
        count = size = 0
        try:
            for message in messages:
                if message.phase:
                    continue
                frame = message.frame
                if frame[4] or message.link is not link:
                    if frame[4] or message.link.state is _CLOSED:
                        self.running -= 1
                        self.pool.used -= 1
                        self.finish(message)
                        continue
                    self._free_many(link, count, size)
                    link = message.link
                    count = size = 0
                message.phase = _ENDED
                count += 1
                size += frame[2]
        finally:
            # Also if the application put something else into the batch.
            if link is not None:
                self._free_many(link, count, size)

    def _free_many(self, link: Link | None, count: int, size: int) -> None:
        self.running -= count
        self.pool.used -= count
        self.credit(link, count, size)

    def credit(self, link: Link | None, count: int, size: int) -> None:
        """Return places for unacknowledged messages of one link that are marked as ended; their slots are freed elsewhere."""
        if link is not None:
            link.unreleased -= count
            link.credit(count, size)

    def carry(self, link: Link) -> None:
        """Count a lost link's unreleased messages, which reduce the window of later links."""
        unacknowledged = (each for each in self.inbox if not each.phase and not each.kind & REQ_ACK)
        messages = [each for each in (*unacknowledged, *self.unacked.values()) if each.link is link]
        self.inbox.irregular = True
        self.inbox.carried += link.unreleased
        self.pool.carried += link.unreleased
        self._carried.update(messages)
        self.carried_bytes += sum(each.body_size for each in messages)

    def free_carried(self, message: Inbound[Any]) -> None:
        """Stop counting a message of a lost link that ended, or was resent: the window over present links grows."""
        self.inbox.carried -= 1
        self.pool.carried -= 1
        if message in self._carried:
            self._carried.remove(message)
            self.carried_bytes -= message.body_size
        for link in self.links:
            if link.reannounce(*self.window):
                self.owner.wake(link)

    @property
    def window(self) -> tuple[int, int]:
        """The peer's window over a new link, in messages and bytes: unreleased messages of lost links are subtracted."""
        messages = max(0, self.settings.window - self.inbox.carried)
        size = self.settings.window_bytes - self.carried_bytes
        # A window in bytes admits one message of any size.
        return (messages, size) if size > 0 or not self.inbox.carried else (0, 0)

    def _note_outcome(self, message: Inbound[Any], outcome: tuple[int, str] | None) -> None:
        serial = message.frame[1]
        # Another message has that serial if the peer was restarted.
        if self.unacked.get(serial) is message:
            del self.unacked[serial]
            outcomes = self.outcomes
            if outcomes is None:
                outcomes = self._remember()
            outcomes.note(serial, outcome)

    def _remember(self) -> RecentOutcomes:
        if self.outcomes is None:
            # A peer may resend a window, and does so before anything else. After one of these, as many may end that were
            # in flight before and were withdrawn, and as many that were sent since.
            self.outcomes = RecentOutcomes(2 * self.settings.window)
        return self.outcomes

    # Messages that are resent, withdrawn, or outlive their link

    @property
    def remembered(self) -> int:
        """Number of outcomes remembered for messages that may be resent."""
        return 0 if self.outcomes is None else len(self.outcomes)

    def trim_outcomes(self) -> int:
        """Drop the outcomes that a peer without a link cannot ask for; return the memory of the rest, in bytes."""
        outcomes = self.outcomes
        if outcomes is None:
            return 0
        outcomes.shorten(2 * self.settings.window)
        return outcomes.size

    def renew_outcome(self, serial: int) -> None:
        """Remember the outcome of a request as the latest: its answer, written behind later ends, was lost."""
        self._remember().renew(serial)

    def resent(self, message: Inbound[Any]) -> bool:
        """Return True if a resent message was received before; its outcome is sent again, now or when it ends."""
        first = self.unacked.get(message.serial)
        if first is not None:
            former: Link = first.link
            if former is message.link:
                return True
            if first not in former.arrived.messages:
                self._move(first, message.link)
                return True
            # It was not taken there, so it is not counted, and would be lost with that link. This one replaces it.
            former.arrived.messages.remove(first)
            del self.unacked[message.serial]
            return False
        serial = message.serial
        if self.outcomes is not None and serial in self.outcomes:
            outcome = self.outcomes[serial]
            # The sender may have to ask again, after others have ended.
            self.outcomes.renew(serial)
        elif any(link.transfers.answering(serial) for link in self.links):
            # Its answer is still being written, and so many others ended since that the outcome is forgotten.
            outcome = None
        else:
            self._mark_resent(message)
            return False
        if outcome is None and message.kind & WANTED and not message.link.transfers.answering(serial):
            message.link.refuse(message, ANSWERED, "it was answered, and the answer is not kept")
        elif outcome is None:
            message.link.acknowledge(message)
        else:
            message.link.refuse(message, *outcome)
        return True

    def _mark_resent(self, message: Inbound[Any]) -> None:
        """Mark a resent message as new here: the first one may still be in transit over a link that its sender lost."""
        for link in list(self.links):
            if link is not message.link and not link.mark_resent(message.serial):
                error = PeerLost(message.address, "its messages were resent over another link")
                self.owner.close(link, error)

    def _move(self, message: Inbound[Any], link: Link) -> None:
        """End a message over another link than it was received over, and count it there from now on."""
        former: Link = message.link
        former.unreleased -= 1
        link.unreleased += 1
        if former.state is _CLOSED:
            self.free_carried(message)
        message.link = link

    def withdraw(self, serial: int, hard: bool) -> None:
        """Apply a withdrawal: refuse a message that waits, notify the handler of one that has begun."""
        message = self.unacked.get(serial)
        if message is None:
            return
        if getattr(message, "begun", False):
            message._withdrawn(hard)
        else:
            self._refuse_waiting(message, Withdrawn.code, "withdrawn by its sender before it began")

    def drop_withdrawn(self, link: Link) -> None:
        """Drop messages that a link received and that were withdrawn at once: they do not get into the inbox."""
        waiting = [message for message in link.arrived.messages if not message.phase]
        count = len(link.arrived.messages) - len(waiting)
        link.arrived.messages = waiting
        link.unreleased += count
        self.inbox.withdrawn -= count

    def forget_all(self) -> None:
        """Drop all outcomes: the peer was restarted, and reuses serials. Messages in progress end unanswered."""
        self.unacked.clear()
        self.outcomes = None
