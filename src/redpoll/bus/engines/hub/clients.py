"""Clients of a hub, and the records sent to each of them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from random import getrandbits
from typing import Any, Final, NamedTuple

from redpoll.bus.broker.limits import CHARGE
from redpoll.bus.broker.permissions import Permissions
from redpoll.bus.broker.queue import Consumer, Parked, Subscription
from redpoll.bus.broker.queue import Peer as BrokerPeer
from redpoll.bus.engines.hub import protocol as p
from redpoll.errors import RedpollError
from redpoll.node import Received
from redpoll.node.door import LayerNode, Peer

__all__ = ["Client", "Watch"]

#: Records that wait for one client, and bytes of them beside tasks. Beyond these what may be lost is, its messages wait to
#: be released, and what is behind a call waits, as it does beyond so many calls that are under way.
_WAITING: Final = 10_000
_WAITING_BYTES: Final = 16 * 2**20
_CALLS: Final = 16
#: Seconds after which a client that holds tasks and takes over nothing that was sent to it is asked what it has begun.
_STALL: Final = 0.4
#: Seconds that an answer that nobody waits for waits for the next record.
_LATE: Final = 0.001
#: A message of no records.
_PROBE: Final = b"\x90"
_FILLED: Final = frozenset({p.DELIVER, p.INPUTS})
_MAY_BE_LOST: Final = frozenset({p.EVENTS, p.PROGRESSED, p.TOLD, p.NOTE})
#: The places of payloads that count; those of deliveries count at the broker's peer.
_PAYLOAD_AT: Final = {p.EVENTS: 3, p.OUTCOME: 3, p.PROGRESSED: 2, p.TOLD: 3}
#: Bytes of tasks that wait to be sent to one client, beyond which it is given no further one until half of them are sent.
_DELIVERED: Final = 16 * 2**20


class Watch(NamedTuple):
    """A watcher of a client, by the number of the request that made it."""

    request: int
    durable: bool


class Client:
    """A client in one session.

    Args:
        node: The hub's node.
        peer: The node's.
        member: The broker's.
        rights: What it may do; None is everything.
        token: The digest of the token that it showed; b"" is none.
        resume: Called with it when its deferred messages can continue.
        reopen: Called with it when it can be given tasks again.

    Attributes:
        peer: The node's.
        member: The broker's.
        rights: What it may do; None is everything.
        token: The digest of its token.
        consumers: The broker's consumers by the client's numbers.
        subscriptions: The subscriptions likewise.
        parked: Publishes that wait for room, by request.
        recorded: Tokens of reclaimed deliveries whose outcomes are recorded; it presents them again.
        observes: Whether it wants notes.
        life: The peer that shows signs of life of it, and the name by which that knows it.
        question: Number of the question what it has begun, until it resumes; 0 if it was not asked.
        open: Whether anything is said to it still.
        calls: Its calls that are being carried out.
        deferred: Messages whose turn comes when it has read more; the first may have begun.
        rest: The records of that which are left.
    """

    def __init__(
        self,
        node: LayerNode,
        peer: Peer,
        member: BrokerPeer,
        rights: Permissions | None,
        token: bytes,
        resume: Callable[[Client], object],
        reopen: Callable[[Client], object],
    ) -> None:
        self._node = node
        self.peer = peer
        self.member = member
        self.rights = rights
        self.token = token
        self.consumers: dict[int, Consumer] = {}
        self.subscriptions: dict[int, Subscription] = {}
        self.parked: dict[int, Parked] = {}
        self.recorded: set[int] = set()
        self.observes = False
        self.life: tuple[Peer, str] | None = None
        self.question = 0
        # Messages that it has not taken over, and when it did so last, or the first of them was sent.
        self._unread = 0
        # True if nothing was sent since the last probe.
        self._probed = True
        self._read = 0.0
        self.open = True
        self.calls = 0
        self.deferred: deque[Received[Any]] = deque()
        self.rest: Iterator[list[Any]] | None = None
        self._resume = resume
        self._reopen = reopen
        member.limit = _DELIVERED
        # True from when so much waits for it until half of that does.
        self._sated = False
        self._waiting: deque[Sequence[Any]] = deque()
        # Among these are deliveries that wait for their bodies, and all behind them.
        self._gaps = 0
        # Bytes of answers to calls and of payloads beside tasks that wait, and those of the answers by request.
        self._bytes = 0
        self._owed: dict[int, int] = {}
        self._held: list[Received[Any]] = []
        self._scheduled = False
        # Sends records that nobody waits for; and True if what waited when it was set was sent with others.
        self._late: asyncio.TimerHandle | None = None
        self._overtaken = False

    def say(self, *record: Any) -> None:
        """Send a record in this turn of the loop, behind those before."""
        if not self.open or (record[0] in _MAY_BE_LOST and self.full):
            return
        self._waiting.append(record)
        place = _PAYLOAD_AT.get(record[0])
        if place is not None and record[place] is not None:
            self._bytes += len(record[place])
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)

    def say_late(self, *record: Any) -> None:
        """Send a record that nobody waits for: with the next one, or a moment later."""
        if self.open:
            self._waiting.append(record)
            if self._late is None:
                self._flush_later()

    def _flush_later(self) -> None:
        self._overtaken = False
        self._late = asyncio.get_running_loop().call_later(_LATE, self._flush_late)

    def _flush_late(self) -> None:
        self._late = None
        if self._overtaken and self._waiting and self.open:
            self._flush_later()
        elif not self._scheduled:
            self.flush()

    def deliver(self, record: list[Any]) -> None:
        """Send a delivery, or what it is given, whose last field is filled in later."""
        if self.open:
            self._gaps += 1
            self._waiting.append(record)

    def filled(self) -> None:
        """Note that a delivery has its body."""
        if self.open:
            self._gaps -= 1
            if not self._scheduled:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self.flush)

    def _complete(self) -> int:
        """Return the number of queued records before the first that waits for its body."""
        for number, record in enumerate(self._waiting):
            if record[0] in _FILLED and record[-1] is None:
                return number
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """True if it has to read what it was told."""
        return len(self._waiting) >= _WAITING or self._bytes >= _WAITING_BYTES

    @property
    def busy(self) -> bool:
        """True if no further call of it is to begin now."""
        return self.full or self.calls >= _CALLS

    def owe(self, request: int, answer: Any) -> None:
        """Count the bytes of the answer to a call, which is sent now, or after the next commit."""
        if request:
            size = _weight((answer,))
            self._bytes += size
            self._owed[request] = self._owed.get(request, 0) + size

    def reply(self, request: int, value: Any = None) -> None:
        """Answer a request, unless it wants no answer."""
        if request:
            self.say(p.REPLY, request, value)

    def fail(self, request: int, error: RedpollError) -> None:
        """Answer a request with an error."""
        if request:
            self.say(p.FAILED, request, p.pack_error(error))

    def flush(self) -> None:
        """Send queued records, as far as there is room."""
        self._scheduled = False
        waiting = self._waiting
        left = self._complete() if self._gaps else len(waiting)
        tasks = 0
        if self.open and left and self._has_room():
            # No more of them are taken, and encoded, than there is room for.
            self._overtaken = True
            for body, records in p.pack(map(deque.popleft, repeat(waiting, left))):
                self._probed = False
                self._post(body)
                tasks += self._settle(records)
                left -= len(records)
                if left and not self._has_room():
                    break
        if self.open:
            member = self.member
            self._sated = self._sated or member.unread >= member.limit
            member.unread = max(0, member.unread - tasks) if waiting else 0
            if self._sated and member.unread <= member.limit // 2:
                # Not only once none waits: something else always may.
                self._sated = False
                self._reopen(self)
        if self._held and (not self.full or not self.open):
            held, self._held = self._held, []
            for message in held:
                message.release()
        if self.deferred and not self.busy:
            self._resume(self)

    def _settle(self, records: list[Sequence[Any]]) -> int:
        """Count records as sent; return the bytes of the tasks among them, as the broker counts them."""
        tasks = 0
        for record in records:
            kind = record[0]
            if kind == p.DELIVER:
                tasks += len(record[-1]) + CHARGE
            elif kind == p.INPUTS:
                tasks += sum(len(payload or b"") + CHARGE for _, _, payload, _ in record[-1])
            elif kind == p.REPLY:
                self._bytes -= self._owed.pop(record[1], 0)
            elif kind in _PAYLOAD_AT:
                self._bytes -= len(record[_PAYLOAD_AT[kind]] or b"")
        return tasks

    def _post(self, body: bytes) -> None:
        if not self._unread:
            self._read = time.monotonic()
        self._unread += 1
        self._node.post(self.peer, body, self._was_read)

    def _was_read(self, _: BaseException | None) -> None:
        self._unread -= 1
        self._read = time.monotonic()

    def look(self, now: float) -> None:
        """If its loop seems to be blocked, and it holds tasks, ask its process which of them it has begun."""
        member = self.member
        if not member.held or member.stalled or self.life is None or now - self._read < _STALL:
            return
        peer, name = self.life
        if self._unread:
            if self._node.room(peer) > 0:
                # A late answer to an earlier question changes nothing.
                self.question = self.question or getrandbits(53) + 1
                ((body, _),) = p.pack([[p.STALLED, name, self.question]])
                self._node.post(peer, body)
        elif not self._probed and member.held > 1:
            # It took all over, and has begun it if its loop has turned once more, when it takes this over.
            self._probed = True
            self._post(_PROBE)

    def _has_room(self) -> bool:
        if self._node.room(self.peer) > 0:
            return True
        self._scheduled = True
        self._node.when_room(self.peer, self.flush)
        return False

    def release(self, messages: list[Received[Any]]) -> list[Received[Any]]:
        """Return the messages that may be released now: none while too many answers to the client are unread."""
        if not self.full or not self.open:
            return messages
        self._held += messages
        return []

    def end(self) -> None:
        """Send nothing more to it."""
        self.open = False
        self._held += self.deferred
        self.deferred.clear()
        self.flush()


def _weight(values: Iterable[Any]) -> int:
    """Return about how many bytes values have, and those in them."""
    size = 0
    for each in values:
        if isinstance(each, bytes | str):
            size += len(each)
        elif isinstance(each, list | tuple):
            size += 64 + _weight(each)
        elif isinstance(each, dict):
            size += 64 + _weight(each.values())
    return size
