"""Exchange: distributes messages to the queues that are bound to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import islice
from time import perf_counter
from typing import Any, Final, NamedTuple

from redpoll.errors import Closed, Expired, MessageTooLarge, QueueFull
from redpoll.node.sending import check_seconds
from redpoll.serializers.flat import flatten
from redpoll.wiring.connection import Pipe
from redpoll.wiring.names import ENDLESS, AtLimit, Limits, Scope, Style
from redpoll.wiring.protocol import BATCH_MESSAGES, Batch
from redpoll.wiring.waiting import Waiters

__all__ = ["IDLE", "LARGEST", "SMALL", "STAGED_BYTES", "Exchange", "ExchangeStats"]

#: Messages up to this size, in bytes, are counted, not measured, when they are sent; the limit grows to the second
#: value while most messages are larger.
SMALL = 1024
LARGEST = 16 * 1024

#: A message that is sent at least this many seconds after the last flush is handed out at once, not with later ones.
IDLE = 25e-6

#: Maximum bytes handed out together in one turn of the loop.
STAGED_BYTES = 256 * 1024


class ExchangeStats(NamedTuple):
    """The counters of an exchange.

    Attributes:
        sent: Messages accepted by `send`.
        dropped: Messages dropped for want of room, or because their queue is gone for good, once per pipe.
        unbound: Messages dropped because no queue was bound.
        waiting: Messages that wait for room at the other end, in all pipes.
        pipes: Pipes.
        unconfirmed: Messages sent to owners that were lost, or deleted their queue, without a confirmation, once per pipe:
            they were received at the last moment, or are lost. If an owner returns and has them, they are subtracted.
    """

    sent: int
    dropped: int
    unbound: int
    waiting: int
    pipes: int
    unconfirmed: int


class Exchange:
    """Distributes messages to bound queues. Created by `Wiring.create_exchange`; call its methods on that event loop.

    Attributes:
        kind: "exchange".
        name: The name.
        scope: The visibility of the name.
        style: The way it distributes messages.
        limits: The limits of each of its pipes at this end.
        at_limit: The action on a message without room.
        settings: All of these, by which another creation of the name is compared.
        closed: True if it was deleted, or its wiring closed.
    """

    kind: Final = "exchange"

    def __init__(
        self,
        name: str,
        scope: Scope,
        style: Style,
        limits: Limits,
        at_limit: AtLimit,
        max_size: int,
        delete: Callable[[Exchange], Any],
    ) -> None:
        self.name = name
        self.scope = scope
        self.style = style
        self.limits = limits
        self.at_limit = at_limit
        self.settings = scope, style, limits, at_limit
        #: Maximum size of a message, in bytes.
        self.max_size = max_size
        self._delete = delete
        self._loop = asyncio.get_running_loop()
        # Not the loop's clock: uvloop's has milliseconds.
        self._time = perf_counter
        #: Messages sent in this turn of the loop and not handed out yet; number of messages that may join them
        #: unmeasured.
        self._staged: list[bytes] = []
        self._cap = 0
        #: Bytes that may still join them.
        self._left = 0
        self._scheduled = False
        self._flushed = 0.0
        #: Number of messages handed out together, and the size up to which they are counted, adapted to recent
        #: messages.
        self._target = BATCH_MESSAGES
        self._small = min(SMALL, max_size)
        self._waits = at_limit is AtLimit.WAIT or at_limit is AtLimit.REFUSE
        #: Its pipes, including lost ones that are kept.
        self.pipes: list[Pipe] = []
        #: Lost pipes with waiting messages.
        self.stranded: dict[Pipe, None] = {}
        self._next = 0
        self.waiters = Waiters()
        self.drainers = Waiters()
        self.closed = False
        self._sent = 0
        self._dropped = 0
        self._unbound = 0
        self._unconfirmed = 0

    @property
    def stats(self) -> ExchangeStats:
        """The counters."""
        staged = len(self._staged)
        waiting = staged + sum(pipe.waiting for pipe in self.pipes)
        unconfirmed = self._unconfirmed + sum(pipe.unconfirmed for pipe in self.pipes if not pipe.up)
        return ExchangeStats(self._sent + staged, self._dropped, self._unbound, waiting, len(self.pipes), unconfirmed)

    # Sending

    def send_nowait(self, data: Any) -> bool:
        """Send a message if there is room for it.

        Args:
            data: A bytes-like object; it is copied unless it is `bytes`.

        Returns:
            False if the message was not sent: there was no room, or, with `Style.BALANCE`, no live queue. With
            `AtLimit.DROP_NEW` and `DROP_OLD` there is always room.

        Raises:
            Closed: The exchange was deleted, or its wiring closed.
            EncodeError: The data is not bytes-like.
            MessageTooLarge: It is above `Config.max_message_size`.
        """
        if type(data) is bytes and len(staged := self._staged) < self._cap and len(data) <= self._small:
            staged.append(data)
            return True
        return self._stage(data)

    async def send(self, data: Any, *, timeout: float | None = None) -> None:
        """Send a message; return when the exchange has accepted it. Does not suspend while there is room.

        Args:
            data: As for `send_nowait`.
            timeout: Seconds to wait for room; None (default) is no limit.

        Raises:
            Expired: There was no room in time; the message was not sent.
            QueueFull: There is no room, and the exchange was made with `AtLimit.REFUSE`.
            Closed: The exchange was deleted, or its wiring closed, perhaps during the wait.
            EncodeError: It is not bytes-like.
            MessageTooLarge: It is above `Config.max_message_size`.
            UsageError: The timeout is invalid.

        If it is cancelled while it waits, the message is not sent.
        """
        if type(data) is bytes and len(staged := self._staged) < self._cap and len(data) <= self._small:
            staged.append(data)
        elif not self._stage(data):
            await self._send_later(data, timeout)

    async def send_many(self, messages: Iterable[Any], *, timeout: float | None = None) -> int:
        """Send messages in order, as fast as there is room.

        Args:
            messages: Any iterable of bytes-like objects.
            timeout: Seconds to wait for room, for each message; None (default) is no limit.

        Returns:
            The number of messages, all of which were sent.

        Raises:
            Expired: As for `send`, also the other errors; earlier messages were sent.

        If it is cancelled, no further message is sent.
        """
        source = iter(messages)
        count = 0
        # Small messages are sent in one step, others one by one.
        while chunk := list(islice(source, max(1, self._cap - len(self._staged)))):
            for data in () if self._stage_all(chunk) else chunk:
                await self.send(data, timeout=timeout)
            count += len(chunk)
        return count

    def send_some(self, messages: list[Any]) -> int:
        """Send messages in order while there is room: `send_nowait` for many at a small cost.

        Returns:
            The number of messages sent.

        Raises:
            Closed: The exchange was deleted, or its wiring closed.
            EncodeError: A message is not bytes-like; earlier ones were sent.
        """
        done = 0
        while done < len(messages):
            chunk = messages[done : done + max(1, self._cap - len(self._staged))]
            if self._stage_all(chunk):
                done += len(chunk)
                continue
            for data in chunk:
                if not self.send_nowait(data):
                    return done
                done += 1
        return done

    def _stage_all(self, messages: list[Any]) -> bool:
        """Stage messages if all of them may be counted; return False if not."""
        staged = self._staged
        if len(staged) + len(messages) > self._cap or set(map(type, messages)) != {bytes}:
            return False
        if max(map(len, messages)) > self._small:
            return False
        staged += messages
        return True

    @property
    def room(self) -> int:
        """The number of empty messages that can be sent before one waits or is dropped; 2**62 without a limit."""
        if self.closed or (not self.pipes and self.style is Style.BALANCE):
            return 0
        return max(0, self._room()[0] - len(self._staged))

    async def flush(self) -> None:
        """Wait until all messages sent so far were handed to the network, or to the queues of this process.

        That includes messages that wait for a lost owner, or for room at the other end.

        Raises:
            Closed: The exchange was deleted, or its wiring closed.
        """
        while True:
            if self._staged:
                self._flush()
            if self.closed:
                raise Closed(f"exchange {self.name!r}")
            if self.is_drained:
                return
            await self.drainers.wait(self.drained)

    async def delete(self) -> None:
        """Delete the exchange: its pipes end after the messages sent so far, and its name is free."""
        await self._delete(self)

    async def _send_later(self, data: Any, timeout: float | None) -> None:
        check_seconds(timeout)
        if self.at_limit is AtLimit.REFUSE and self.pipes:
            raise self._full(data)
        try:
            async with asyncio.timeout(timeout):
                while not self._stage(data):
                    await self.waiters.wait(self.room_changed)
        except TimeoutError:
            raise Expired(data, timeout, "waiting for room") from None

    def _full(self, data: Any) -> QueueFull:
        full = any(pipe.lacks_messages for pipe in self.pipes)
        limits = self.limits
        error = QueueFull(data, limits.most_messages if full else limits.most_bytes, "messages" if full else "bytes")
        error.hint = "send later, or make the exchange with AtLimit.WAIT"
        return error

    # Staging

    def _stage(self, data: Any) -> bool:
        """Accept a message off the fast path; return False if there is no room."""
        if self.closed:
            raise Closed(f"exchange {self.name!r}")
        if type(data) is not bytes:
            data = bytes(flatten("wiring", data))
        size = len(data)
        if size > self.max_size:
            raise MessageTooLarge("message", size, self.max_size)
        staged = self._staged
        if staged:
            if len(staged) < self._cap and size <= self._left:
                staged.append(data)
                self._left -= size
                if self._left <= 0:
                    self._flush()
                return True
            self._flush()
            if self._staged:
                return False
        if not self.pipes and self.style is Style.DISTRIBUTE:
            self._sent += 1
            self._unbound += 1
            return True
        messages, room = self._room()
        if messages <= 0:
            return False
        now = self._time()
        if size >= STAGED_BYTES or now - self._flushed > IDLE:
            self._flushed = now
            self._hand_out([data], size)
            if self.waiters:
                self.room_changed()
            return True
        self._cap = max(1, min(messages, self._target, room // self._small))
        self._left = min(STAGED_BYTES, room) - size
        # Not `staged`, which may have been handed out.
        self._staged.append(data)
        if self._left <= 0:
            self._flush()
        elif not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)
        if self.waiters:
            self.room_changed()
        return True

    def _room(self) -> tuple[int, int]:
        """Return (messages, bytes) that may be staged without asking again; the bytes count before the last message."""
        if self.style is Style.BALANCE:
            up = [pipe.room() for pipe in self.pipes if pipe.up]
            rooms = [room for room in up if room[0]]
            if not rooms:
                return (0, 0) if self._waits or not up else (ENDLESS, ENDLESS)
            return len(rooms) * min(room[0] for room in rooms), min(room[1] for room in rooms)
        messages = size = ENDLESS
        if self._waits:
            for pipe in self.pipes:
                room = pipe.room()
                messages = min(messages, room[0])
                size = min(size, room[1])
        return messages, size

    def _turn(self) -> None:
        self._scheduled = False
        if self._staged:
            self._flush()

    def _flush(self) -> None:
        staged, self._staged = self._staged, []
        self._cap = 0
        self._flushed = self._time()
        size = sum(map(len, staged))
        count = len(staged)
        if count >= 16:
            # Later messages are likely to be of similar size.
            each = size // count
            self._small = min(max(each, SMALL), LARGEST, self.max_size)
            self._target = min(max(STAGED_BYTES // (each or 1), 16), BATCH_MESSAGES)
        self._hand_out(staged, size)

    def _hand_out(self, messages: list[bytes], size: int) -> None:
        if self.style is Style.BALANCE:
            self._balance(messages)
            return
        self._sent += len(messages)
        pipes = self.pipes
        if not pipes:
            self._unbound += len(messages)
            return
        batch = Batch(messages, size)
        for pipe in pipes if len(pipes) == 1 else list(pipes):
            dropped = pipe.accept(batch)
            if dropped:
                self._dropped += dropped
            pipe.pump()

    def _balance(self, messages: list[bytes]) -> None:
        """Give each message to one pipe in turn, while some have room; without room `at_limit` decides for each."""
        while messages:
            up = [pipe for pipe in self.pipes if pipe.up]
            if not up:
                # The pipes were lost meanwhile: messages wait for the next one.
                self._staged = messages + self._staged
                self._cap = 0
                return
            rooms = [(pipe, room) for pipe in up if (room := pipe.room()[0])]
            pipes = [pipe for pipe, _ in rooms] or up
            count = len(pipes)
            most = count * min(room for _, room in rooms) if rooms else len(messages)
            some, messages = messages[:most], messages[most:]
            self._sent += len(some)
            begin = self._next % count
            self._next = begin + len(some)
            for number in range(min(count, len(some))):
                pipe = pipes[(begin + number) % count]
                self._dropped += pipe.accept(Batch(some[number::count]))
                pipe.pump()

    # Pipes

    @property
    def is_drained(self) -> bool:
        """True if no message waits in this exchange."""
        return not self._staged and all(pipe.empty for pipe in self.pipes)

    def stage_out(self) -> None:
        """Hand out staged messages."""
        if self._staged:
            self._flush()

    def drained(self) -> None:
        """Wake calls of `flush` if no message waits in any pipe."""
        if self.is_drained:
            self.drainers.wake_all()

    def room_changed(self) -> None:
        """Wake the longest waiting sender, if there is room."""
        waiters = self.waiters
        if self.style is Style.BALANCE and self._staged and not self._cap:
            self._flush()
        if self.closed:
            waiters.wake_all()
        elif waiters and ((not self.pipes and self.style is Style.DISTRIBUTE) or self._room()[0] > 0):
            waiters.wake()

    def pipe_changed(self) -> None:
        """Handle a pipe that was opened, closed, lost or restored."""
        self.stage_again()
        self._cap = min(self._cap, len(self._staged))
        self.room_changed()
        if self.drainers:
            self.drained()

    def stage_again(self) -> None:
        """Move messages that wait in lost pipes to live ones, if each message goes to one queue."""
        if not self.stranded or self.style is not Style.BALANCE or not any(pipe.up for pipe in self.pipes):
            return
        stranded, self.stranded = self.stranded, {}
        messages = [message for pipe in stranded if not pipe.up for message in pipe.withdraw()]
        if messages:
            self._sent -= len(messages)
            self._balance(messages)

    def take_back(self, pipe: Pipe) -> None:
        """Withdraw messages that a pipe will not send: give them to others if each goes to one queue, else drop them."""
        if self.style is Style.BALANCE and not self.closed:
            messages = pipe.withdraw()
            if messages:
                self._sent -= len(messages)
                self._balance(messages)
        else:
            self._dropped += pipe.discard()

    def count_unconfirmed(self, count: int) -> None:
        """Count messages that were sent to a lost owner and will not be confirmed."""
        self._unconfirmed += count

    def pipe_lost(self, pipe: Pipe) -> None:
        """Handle a pipe whose connection is lost: messages in it wait for an owner, unless it only had these to send."""
        if pipe.ending:
            self.count_unconfirmed(pipe.give_up())
            self.take_back(pipe)
            pipe.end()
        elif self.style is Style.BALANCE and not pipe.empty:
            self.stranded[pipe] = None

    def remove(self, pipe: Pipe) -> None:
        """Remove a pipe; only messages that wait in it are still sent."""
        self.stage_out()
        if pipe in self.pipes:
            self.pipes.remove(pipe)
            self.stranded.pop(pipe, None)
            if not pipe.up:
                self.count_unconfirmed(pipe.give_up())
        pipe.ending = True
        if pipe.connection is None or pipe.empty:
            self.take_back(pipe)
            pipe.end()
        self.pipe_changed()

    def close(self) -> None:
        """Accept no more messages; wake waiting calls."""
        self.stage_out()
        self.closed = True
        self._cap = 0
        self.room_changed()
        self.drainers.wake_all()

    def inherit(self) -> None:
        """Accept nothing in a forked child: the parent sends what waits."""
        self._staged.clear()
        self.closed = True
        self._cap = 0

    def __repr__(self) -> str:
        return f"<Exchange {self.name!r} {self.scope.value} {self.style.value}>"
