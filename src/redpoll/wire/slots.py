"""The receiving half of a peer: its messages wait in an inbox, are begun in order as slots are free, and end once.

Acknowledgements, refusals, answers and credits are written here: they follow from how a message ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from redpoll.errors import Withdrawn
from redpoll.wire.capabilities import WINDOW_UNIT
from redpoll.wire.duplicates import RecentOutcomes
from redpoll.wire.frames import ANSWERED, Kind, refusal_text
from redpoll.wire.inbound import Inbound, Phase
from redpoll.wire.link import Link
from redpoll.wire.outgoing import Payload
from redpoll.wire.settings import Settings
from redpoll.wire.slot_pool import SlotPool
from redpoll.wire.states import LinkState
from redpoll.wire.tally import Counters

__all__ = ["OVERHEAD", "Slots"]

_REQ_ACK = int(Kind.REQ_ACK)
_RETRY = int(Kind.RETRY)
_WANTED = int(Kind.WANTED)
_ENDED = int(Phase.ENDED)
_CLOSED = LinkState.CLOSED

#: What a waiting message costs beside its body, bytes, where an inbox is measured: so empty messages count too.
OVERHEAD = 256


class Slots:
    """The messages of one peer that have not ended, over all its links.

    Attributes:
        inbox: Those that wait, in the order of arrival; some may have been withdrawn since.
        running: How many are held in a slot.
        limit: How many may be.
        held: Acknowledged messages of an announced peer that have not ended, by serial: what a cancel frame or a
            resent message can still mean.
        carried: How many of all these came over links that are gone; a new link's window is smaller by them.
        carried_bytes: What those of them have that wait, or are to be acknowledged.
        charged: Bytes of the node's memory that the inbox is charged for: what waits, at least.
    """

    __slots__ = (
        "_at_most",
        "_outcomes",
        "_resume_at",
        "carried",
        "carried_bytes",
        "charged",
        "counters",
        "held",
        "inbox",
        "irregular",
        "limit",
        "overrun",
        "pool",
        "running",
        "settings",
    )

    def __init__(self, settings: Settings, pool: SlotPool, counters: Counters) -> None:
        self.settings = settings
        self.pool = pool
        self.counters = counters
        self.limit = settings.slots
        self.running = 0
        self.inbox: deque[Inbound[Any]] = deque()
        self.held: dict[int, Inbound[Any]] = {}
        self.carried = self.carried_bytes = 0
        #: Whether any message in the inbox has a deadline or has ended.
        self.irregular = False
        self._outcomes: RecentOutcomes | None = None
        #: Whether reading is to stop: `arrived()` said so, and `resumable` has not said to go on.
        self.overrun = False
        self._resume_at = 0
        #: Bytes that wait in the inbox, at most: what was begun since the last count is still in it.
        self._at_most = 0
        self.charged = 0

    @property
    def busy(self) -> bool:
        """Whether any message waits or is handled."""
        return bool(self.inbox or self.running)

    # Arriving and beginning

    def arrived(self, link: Link) -> bool:
        """Let a link's messages wait. True: the peer overran what it may send, stop reading from it until `resumable`.

        It is said again as long as that holds: to each link that brings more, as one that was made meanwhile does.
        """
        inbox = self.inbox
        messages = link.arrived
        if not inbox:
            self.irregular = False
            self._at_most = 0
            self.charge(0)
        if link.timed:
            self.irregular = True
            link.timed = False
        link.arrived = []
        inbox.extend(messages)
        self.counters.received += len(messages)
        link.held += len(messages)
        self._at_most += link.arrived_bytes
        self.charge(self.charged + link.arrived_bytes)
        link.arrived_bytes = 0
        settings = self.settings
        allowed, limit = 0, settings.lookahead
        if link.announced is not None and not (self._at_most > limit and self.pool.memory.full):
            # At the node's limit of memory nobody has more than a libchirp peer.
            window = max(settings.window_bytes, WINDOW_UNIT)
            allowed, limit = settings.window, limit + window + window // 4
        if self.overrun:
            return True
        if len(inbox) <= allowed and (self._at_most <= limit or len(inbox) < 2):
            return False
        # What was added up since the inbox was empty is more than waits now: count, and add to that from here on.
        self._at_most = sum(message.frame[2] for message in inbox)
        self.charge(self._at_most)
        largest = max(message.frame[2] for message in inbox)
        if allowed and largest > settings.window_bytes:
            # One that is larger than the window may stand beside a window of others.
            self._at_most -= largest
        if self._at_most <= limit and (
            len(inbox) <= allowed or self._at_most + OVERHEAD * len(inbox) <= settings.lookahead
        ):
            return False
        self.overrun = True
        self.pool.memory.tally.overruns += 1
        self._resume_at = len(inbox) // 2
        return True

    def charge(self, size: int) -> None:
        """Charge the inbox with so many bytes."""
        self.pool.memory.inboxes += size - self.charged
        self.charged = size

    def count(self) -> None:
        """Charge the inbox with what is in it: reads are charged as they come, and more than waits."""
        if self.charged:
            self.charge(sum(message.frame[2] for message in self.inbox))

    @property
    def resumable(self) -> bool:
        """True once after `arrived()` returned True, when half of what waited has been begun."""
        if not self.overrun or len(self.inbox) > self._resume_at:
            return False
        self.overrun = False
        return True

    def begin(self, now: float) -> Inbound[Any] | None:
        """Take the next message that may be begun, now in a slot; None if none waits or no slot is free."""
        inbox = self.inbox
        pool = self.pool
        while inbox and self.running < self.limit and pool.used < pool.limit:
            message = inbox.popleft()
            if self.irregular and not self._may_begin(message, now):
                continue
            self.running += 1
            pool.used += 1
            return message
        return None

    def next(self, now: float) -> Inbound[Any] | None:
        """As `begin()`, in the slot of a message that `finish()` ended; the slot is free when there is none."""
        inbox = self.inbox
        while inbox:
            message = inbox.popleft()
            if self.irregular and not self._may_begin(message, now):
                continue
            return message
        self.leave()
        return None

    def _may_begin(self, message: Inbound[Any], now: float) -> bool:
        """Whether a message that waited is still to be begun; one whose deadline passed is refused."""
        if message.phase:
            return False
        deadline = message.deadline
        if deadline is not None and deadline <= now:
            self._refuse(message, Withdrawn.code, "its deadline passed before it was begun")
            return False
        return True

    def leave(self) -> None:
        """Give the slot back that `finish()` left with the caller."""
        self.running -= 1
        self.pool.used -= 1

    def begin_many(self, now: float, limit: int) -> list[Inbound[Any]]:
        """Take up to `limit` messages that may be begun, all in slots."""
        limit = min(limit, self.limit - self.running, self.pool.limit - self.pool.used)
        if limit <= 0:
            return []
        inbox = self.inbox
        if self.irregular:
            batch: list[Inbound[Any]] = []
            while len(batch) < limit and (message := self.begin(now)) is not None:
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
        """Let messages wait again that were begun and not seen by anybody: before all others, and in no slot."""
        self.running -= len(messages)
        self.pool.used -= len(messages)
        # One with a deadline may be among them.
        self.irregular = True
        if not self.inbox:
            self._at_most = 0
            self.charge(0)
        self.inbox.extendleft(reversed(messages))
        size = sum(message.body_size for message in messages)
        self._at_most += size
        self.charge(self.charged + size)

    # Ends

    def release(self, message: Inbound[Any]) -> bool:
        """The work is done: free the slot, acknowledge. False if the message had ended before."""
        if message.phase:
            return False
        self.running -= 1
        self.pool.used -= 1
        self.finish(message)
        return True

    def finish(self, message: Inbound[Any]) -> None:
        """End a message as done whose slot the caller keeps, to begin the next one in it."""
        message.phase = _ENDED
        link = message.link
        link.held -= 1
        if link.state is _CLOSED:
            self._ended_late(message)
        if not message.kind & _REQ_ACK:
            link.credit(1, message.body_size)
        elif link.announced is None:
            self._route(link).acknowledge(message)
        else:
            self._forget(message, None)
            link.acknowledge(message)

    def refuse(self, message: Inbound[Any], code: int, text: str) -> bool:
        """The work is not done: free the slot, say why to a sender that can be told. False if it had ended before."""
        if message.phase:
            return False
        self.running -= 1
        self.pool.used -= 1
        self._refuse(message, code, text)
        return True

    def refuse_waiting(self, message: Inbound[Any], code: int, text: str) -> bool:
        """Refuse a message that is still in the inbox, or not even there. False if it was begun, or had ended."""
        if message.phase:
            return False
        link = message.link
        # It is passed over when its turn comes; in front nothing stays that has ended.
        if message in self.inbox:
            self.irregular = True
        elif message in link.arrived:
            # It never waits, but counts as if it had: from here on nobody has to know of it.
            link.arrived.remove(message)
            link.held += 1
            self.counters.received += 1
        else:
            return False
        self._refuse(message, code, text)
        inbox = self.inbox
        while inbox and inbox[0].phase:
            inbox.popleft()
        return True

    def _refuse(self, message: Inbound[Any], code: int, text: str) -> None:
        message.phase = _ENDED
        self.counters.refused += 1
        link = message.link
        link.held -= 1
        if link.state is _CLOSED:
            self._ended_late(message)
        if link.announced is None:
            return
        if message.kind & _REQ_ACK:
            text = refusal_text(text)
            self._forget(message, (code, text))
            link.refuse(message, code, text)
        else:
            link.credit(1, message.body_size)

    def refuse_all_waiting(self, code: int, text: str) -> None:
        """Refuse all that waits in the inbox."""
        inbox = self.inbox
        waiting = list(inbox)
        inbox.clear()
        for message in waiting:
            if not message.phase:
                self._refuse(message, code, text)

    def turn_away(self, link: Link, code: int, text: str, *, promised: bool) -> None:
        """Take nothing more of what a link brought, before it waits.

        What comes before our goodbye from who understands one is not mentioned: the goodbye will say that it was not taken,
        and it goes to whoever is there next. What cannot be sent again that way is refused.

        Args:
            link: The link.
            code: Why.
            text: Why, in words.
            promised: Whether also what was begun before our goodbye, which said that it would be handled.
        """
        messages, link.arrived = link.arrived, []
        for message in messages:
            if link.taking and link.announced is not None and message.kind & (_REQ_ACK | _RETRY) == _REQ_ACK:
                if self.held.get(message.serial) is message:
                    del self.held[message.serial]
                link.turn_back(message.serial)
            elif not promised and not link.taking and message.kind & _REQ_ACK:
                link.arrived.append(message)
            else:
                self.counters.received += 1
                link.held += 1
                self._refuse(message, code, text)

    def release_with_answer(self, message: Inbound[Any], answer: Payload) -> None:
        """The work is done and this is what came of it: for an announced peer one frame says both."""
        self.running -= 1
        self.pool.used -= 1
        message.phase = _ENDED
        message.link.held -= 1
        self._forget(message, None)
        message.link.answer(message, answer, ends=True)

    def release_many(self, messages: Iterable[Inbound[Any]]) -> None:
        """Release a batch that `begin_many()` gave: places of unacknowledged messages come back in one go."""
        link: Link | None = None
        count = size = 0
        for message in messages:
            if message.phase:
                continue
            frame = message.frame
            if frame[4] or message.link is not link:
                if frame[4] or message.link.announced is None or message.link.state is _CLOSED:
                    self.release(message)
                    continue
                self._free_many(link, count, size)
                link = message.link
                count = size = 0
            message.phase = _ENDED
            count += 1
            size += frame[2]
        self._free_many(link, count, size)

    def _free_many(self, link: Link | None, count: int, size: int) -> None:
        self.running -= count
        self.pool.used -= count
        self.credit(link, count, size)

    def credit(self, link: Link | None, count: int, size: int) -> None:
        """Give places back for unacknowledged messages of one link that were marked as ended; their slots are apart."""
        if link is not None:
            link.held -= count
            link.credit(count, size)

    def carry(self, link: Link) -> None:
        """A link is gone: what came over it and has not ended is in the window of those to come."""
        unacknowledged = (each for each in self.inbox if not each.phase and not each.kind & _REQ_ACK)
        messages = [each for each in (*unacknowledged, *self.held.values()) if each.link is link]
        self.carried += link.held
        self.pool.carried += link.held
        self.carried_bytes += sum(each.body_size for each in messages)

    def _ended_late(self, message: Inbound[Any]) -> None:
        """A message that came over a lost link ended, or came again: the window over present links grows by its place."""
        self.carried -= 1
        self.pool.carried -= 1
        self.carried_bytes = max(0, self.carried_bytes - message.body_size) if self.carried else 0
        peer = message.link.peer
        if peer is not None:
            peer.tell_window()

    def _forget(self, message: Inbound[Any], outcome: tuple[int, str] | None) -> None:
        held = self.held
        known = held.pop(message.serial, None)
        if known is message:
            outcomes = self._outcomes
            if outcomes is None:
                # What a peer may send again is what it has open, a window, and it does so before all else.
                outcomes = self._outcomes = RecentOutcomes(2 * self.settings.window)
            outcomes.note(message.serial, outcome)
        elif known is not None:
            # The peer started anew meanwhile, and means another message by that number.
            held[message.serial] = known

    @staticmethod
    def _route(link: Link) -> Link:
        """Where an acknowledgement for libchirp goes: back over its link, or over the peer's present one."""
        peer = link.peer
        if peer is not None and link.state is _CLOSED and peer.link is not None:
            return peer.link
        return link

    # Messages that are sent again, withdrawn, or outlive their link

    @property
    def remembered(self) -> int:
        """How many outcomes are remembered for messages that may be sent again."""
        return 0 if self._outcomes is None else len(self._outcomes)

    def resent(self, message: Inbound[Any]) -> bool:
        """Whether a message marked as sent again was here before; then it is answered again, or will be when it ends."""
        first = self.held.get(message.serial)
        if first is not None:
            former = first.link
            if former is message.link:
                return True
            if first not in former.arrived:
                self.move(first, message.link)
                return True
            # It was not taken there: nothing counts it, and it would go with that link. This one stands for it.
            former.arrived.remove(first)
            del self.held[message.serial]
            return False
        if self._outcomes is None or message.serial not in self._outcomes:
            return False
        outcome = self._outcomes[message.serial]
        if outcome is None and message.kind & _WANTED:
            message.link.refuse(message, ANSWERED, "it was answered, and the answer is not kept")
        elif outcome is None:
            message.link.acknowledge(message)
        else:
            message.link.refuse(message, *outcome)
        return True

    def move(self, message: Inbound[Any], link: Link) -> None:
        """Let a message end over another link than it came over: there it counts from now on."""
        former = message.link
        former.held -= 1
        link.held += 1
        if former.state is _CLOSED:
            self._ended_late(message)
        message.link = link

    def withdraw(self, serial: int, hard: bool) -> None:
        """The sender gave a message up: one that waits is refused, one being handled is told."""
        message = self.held.get(serial)
        if message is None:
            return
        if not self.refuse_waiting(message, Withdrawn.code, "withdrawn by its sender before it was begun"):
            message._withdrawn(hard)

    def forget_all(self) -> None:
        """The peer started anew: its serials mean other messages now. Those in progress go on, unanswered."""
        self.held.clear()
        self._outcomes = None
