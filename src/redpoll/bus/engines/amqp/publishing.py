"""Messages on their way to the broker: each ends once, as confirmed, refused, without a route, or not confirmed."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import Callable, Generator
from typing import Any, Final

from redpoll.bus.engines.amqp.link import Broken, Channel, Rejected
from redpoll.bus.engines.amqp.messages import OUTCOME
from redpoll.bus.engines.amqp.session import Session
from redpoll.bus.engines.amqp.wire import Content, Properties
from redpoll.errors import NoRoute, NotAuthorized, NotConfirmed, QueueFull, RedpollError, UsageError

__all__ = ["Alarm", "Alarms", "Publisher", "Sending"]

#: Bytes of bodies that wait for a connection, or for the server to read again; and of those that it has not confirmed.
_WAITING_BYTES: Final = 64 * 2**20
_SENT_BYTES: Final = 64 * 2**20
#: Seconds before what the server has not taken is sent again, at first and at most; after 15 tries it is the most.
_PAUSE: Final = 0.02
_LONGEST: Final = 1.0
#: Maximum tries, some 30 s, of a message to a queue that is never full.
_TRIES: Final = 45
#: Seconds between two channels that are opened as the server takes nothing on the last one; and channels at most.
_STALE: Final = 0.3
_PARTING: Final = 32
#: Seconds without a confirmation before another channel is opened; and that this may take before the link is given up.
_SILENT: Final = 3.0
_OPEN_TIMEOUT: Final = 10.0
#: Ends a text that the server has cut to 255 bytes.
_CUT: Final = "..."
#: Seconds between two looks whether the server still reads.
_LOOK: Final = 0.1


class Alarm:
    """A function that is called later."""

    __slots__ = ("_alarms", "function")

    def __init__(self, alarms: Alarms, function: Callable[[], object]) -> None:
        self._alarms = alarms
        self.function: Callable[[], object] | None = function

    def cancel(self) -> None:
        """Do not call it, and hold on to it no longer."""
        if self.function is not None:
            self.function = None
            self._alarms.cancelled()


class Alarms:
    """Functions that are called later, by one timer of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heap: list[tuple[float, int, Alarm]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._when = 0.0
        self._cancelled = 0

    def set(self, seconds: float, function: Callable[[], object]) -> Alarm:
        """Call a function after some seconds."""
        when = self._loop.time() + seconds
        alarm = Alarm(self, function)
        heapq.heappush(self._heap, (when, next(self._numbers), alarm))
        if self._timer is None or when < self._when:
            self._arm()
        return alarm

    def cancelled(self) -> None:
        """Note that one was cancelled; these go once they are more than the others."""
        self._cancelled += 1
        if self._cancelled > 100 and self._cancelled > len(self._heap) // 2:
            self._heap = [each for each in self._heap if each[2].function is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._when = self._heap[0][0]
        self._timer = self._loop.call_at(self._when, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._heap and self._heap[0][0] <= now:
            alarm = heapq.heappop(self._heap)[2]
            function, alarm.function = alarm.function, None
            if function is None:
                self._cancelled -= 1
            else:
                function()
        if self._heap and self._timer is None:
            self._arm()

    def close(self) -> None:
        """Call nothing any more."""
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Sending:
    """A message to be published, and its end. It can be awaited, once.

    Args:
        exchange: Name of the exchange.
        key: The routing key.
        properties: The properties.
        body: The body.
        mandatory: True if it has to reach a queue.
        again: True if a second one is harmless: it is sent again where a connection is lost before the confirmation.

    Attributes:
        sent: True once it is on its way.
        channel: The channel that it was sent on last.
        ended: True once its end is known.
        error: Its end, where it failed.
        tries: How often the server has not taken it.
    """

    __slots__ = (
        "_future", "_then", "again", "body", "channel", "ended", "error", "exchange", "key", "mandatory", "properties",
        "sent", "since", "tries",
    )  # fmt: skip

    def __init__(
        self,
        exchange: str,
        key: str,
        properties: Properties,
        body: bytes | memoryview,
        *,
        mandatory: bool = False,
        again: bool = False,
        then: Callable[[RedpollError | None], object] | None = None,
    ) -> None:
        self.exchange = exchange
        self.key = key
        self.properties = properties
        self.body = body
        self.mandatory = mandatory
        self.again = again
        self.sent = False
        self.channel: Channel | None = None
        self.ended = False
        self.since = 0.0
        self.tries = 0
        self.error: RedpollError | None = None
        self._future: asyncio.Future[None] | None = None
        self._then = then

    def wait(self) -> asyncio.Future[None]:
        """Return a future that is done at its end."""
        if self._future is None or self._future.cancelled():
            # The wait before was cancelled.
            self._future = asyncio.get_running_loop().create_future()
            if self.ended:
                self._future.set_result(None)
        return self._future

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for its end."""
        if not self.ended:
            try:
                yield from self.wait()
            except asyncio.CancelledError:
                self.cancelled()
                raise
        if self.error is not None:
            raise self.error
        return self.result()

    def result(self) -> Any:
        """Return what awaiting it gives."""
        return None

    def end(self, error: RedpollError | None) -> None:
        """Note its end."""
        if self.ended:
            return
        self.ended = True
        self.error = error
        if self._future is not None and not self._future.done():
            self._future.set_result(None)
        if self._then is not None:
            self._then(error)

    def refused(self, publisher: Publisher) -> None:
        """Note that the server has not taken it: a queue is full, or has no leader for a moment."""
        if self.again and self.tries < _TRIES:
            publisher.send_later(self)
            return
        self.end(QueueFull(None, 0, "tasks", queue=self.key))

    def no_route(self) -> None:
        """Note that it has reached no queue."""
        self.end(NoRoute(self.key))

    def cancelled(self) -> None:
        """Note that nobody waits for it any more."""


class Publisher:
    """Publishes on a channel of its own, with confirmations, and keeps what waits.

    Args:
        session: The session.
        label: Its name in reports.

    Attributes:
        unconfirmed: Messages by their numbers, which no two have.
        held: Messages that are sent later: they wait for room, or for what is declared before.
    """

    def __init__(self, session: Session, label: str = "publishing") -> None:
        self.label = label
        self.unconfirmed: dict[int, Sending] = {}
        self.held: dict[Sending, None] = {}
        self._session = session
        self._channel: Channel | None = None
        #: Added to the numbers of the channel, which begin at 1 on each.
        self._offset = 0
        self._last = 0
        self._renewed = self._heard = 0.0
        self._parting = 0
        self._waiting: dict[Sending, None] = {}
        self._waiting_bytes = self._sent_bytes = 0
        self._loop = asyncio.get_running_loop()
        session.unanswered.append(self._longest)

    def send(self, sending: Sending) -> None:
        """Publish a message now, or as soon as the server takes it."""
        self.held.pop(sending, None)
        if sending.ended:
            return
        channel = self._channel
        if self._session.failed is not None:
            sending.end(self._session.failed)
        elif channel is not None and channel.usable and not self._waiting and self._takes:
            self._write(channel, sending)
        elif self._waiting_bytes and self._waiting_bytes + len(sending.body) > _WAITING_BYTES:
            sending.end(QueueFull(None, _WAITING_BYTES, "bytes", queue=sending.key))
        else:
            self._waiting[sending] = None
            self._waiting_bytes += len(sending.body)

    @property
    def _takes(self) -> bool:
        session = self._session
        return not session.is_blocked and not session.is_full and self._sent_bytes < _SENT_BYTES

    def send_later(self, sending: Sending) -> asyncio.TimerHandle:
        """Publish a message again that the server has not taken, after a pause that grows with its tries."""
        sending.sent = False
        longest = min(_LONGEST, _PAUSE * 1.5 ** min(sending.tries, 20))
        sending.tries += 1
        self.held[sending] = None
        self._renew_soon()
        # At random, so that they do not come together.
        return self._loop.call_later(longest * random.uniform(0.5, 1.0), self.send, sending)  # noqa: S311

    def withdraw(self, sending: Sending) -> bool:
        """Take back what was not sent; return False if it was."""
        self.held.pop(sending, None)
        if sending in self._waiting:
            del self._waiting[sending]
            self._waiting_bytes -= len(sending.body)
            return True
        return not sending.sent

    def _write(self, channel: Channel, sending: Sending) -> None:
        try:
            tag = channel.publish(sending.exchange, sending.key, sending.properties, sending.body, sending.mandatory)
        except UsageError as error:
            sending.end(error)
            return
        sending.sent = True
        sending.channel = channel
        sending.since = self._loop.time()
        self._sent_bytes += len(sending.body)
        self._last = self._offset + tag
        self.unconfirmed[self._last] = sending

    def resume(self) -> None:
        """Send what waits, as far as the server reads."""
        while self._waiting and self._channel is not None and self._takes:
            sending = next(iter(self._waiting))
            del self._waiting[sending]
            self._waiting_bytes -= len(sending.body)
            if not sending.ended:
                self._write(self._channel, sending)

    async def restore(self) -> None:
        """Open its channel, and send what waits."""
        opened: list[Channel] = []
        async with self._session.outgoing.opening(lambda error: self._closed(opened, error)) as channel:
            opened.append(channel)
            await channel.ask("confirm.select", 0)
        self._offset = offset = self._last
        channel.confirmed = lambda tag, multiple, taken: self._confirmed(offset, tag, multiple, taken)
        channel.returned = self._returned
        self._channel = channel
        self._renewed = self._loop.time()
        self.resume()

    def _renew_soon(self) -> None:
        """Publish on another channel, where there are several servers, unless one was opened just now."""
        now = self._loop.time()
        if self._session.several and now - self._renewed > _STALE and self._parting < _PARTING:
            # None beside it.
            self._renewed = now + _OPEN_TIMEOUT
            self._session.spawn(self._renew())

    async def _renew(self) -> None:
        """Publish on another channel: one looks for the leader of a queue once, and may have found one that is gone."""
        before = self._channel
        if before is None:
            return
        self._parting += 1
        link = before.link
        unsent = link.unsent
        try:
            async with asyncio.timeout(_OPEN_TIMEOUT):
                await self.restore()
            parting = [self.unconfirmed[each].wait() for each in self._sent_on(before)]
            if parting:
                await asyncio.wait(parting)
            await before.close()
            # The server says nothing of these.
            self._settle(self._sent_on(before), Broken("its channel was closed"))
            self.resume()
        except TimeoutError:
            # A large body may stand before it, of which the server has read some.
            if not self._session.is_blocked and link.unsent >= unsent:
                link.abort(Broken(f"it opened no channel within {_OPEN_TIMEOUT:g} s"))
        finally:
            self._parting -= 1

    def _sent_on(self, channel: Channel) -> list[int]:
        return [number for number, each in self.unconfirmed.items() if each.channel is channel]

    def suspend(self, error: Exception) -> None:
        """Settle what was sent: it is not known whether it arrived."""
        self._channel = None
        self._settle(list(self.unconfirmed), error)

    def _settle(self, numbers: list[int], error: Exception) -> None:
        again: dict[Sending, None] = {}
        refusals = {number: _refusal(self.unconfirmed[number], error) for number in numbers}
        refused = [number for number, refusal in refusals.items() if refusal is not None]
        # Behind the one that it refuses, the server reads nothing on that channel. That is the first of these, as a channel
        # remembers what is permitted; but the exchange of one that was taken may be deleted behind it, and of a text that
        # was cut it may be another key.
        cut = isinstance(error, Rejected) and error.text.endswith(_CUT)
        is_last = cut or (isinstance(error, Rejected) and error.code == 404)
        unread = refused[-1 if is_last else 0] if refused else self._last
        for number in numbers:
            sending = self.unconfirmed.pop(number)
            self._sent_bytes -= len(sending.body)
            refusal = refusals[number]
            if refusal is not None and (number >= unread or (sending.again and not cut)):
                sending.end(refusal)
            elif sending.again or number > unread:
                # One that may be repeated may have been sent on a connection before, too.
                sending.sent = sending.again
                again[sending] = None
                self._waiting_bytes += len(sending.body)
            else:
                sending.end(NotConfirmed(None, f"the connection was lost before the confirmation: {error}"))
        self._waiting = again | self._waiting

    def tells(self, task: str) -> bool:
        """Return True if the outcome of a task is on its way."""
        return any(
            each.properties.correlation_id == task and each.properties.type == OUTCOME
            for each in itertools.chain(self.unconfirmed.values(), self._waiting, self.held)
        )

    async def flush(self) -> None:
        """Wait until what was sent is confirmed, as far as the server reads."""
        pending = {each.wait() for each in self.unconfirmed.values()}
        while pending and not self._session.is_blocked:
            _, pending = await asyncio.wait(pending, timeout=_LOOK)

    def fail(self, error: RedpollError) -> None:
        """Settle everything: no connection is made any more."""
        self.close(error)

    def close(self, error: RedpollError) -> None:
        """Settle everything."""
        for sending in [*self.unconfirmed.values(), *self._waiting, *self.held]:
            sending.end(error)
        self.unconfirmed.clear()
        self._waiting.clear()
        self.held.clear()

    def _closed(self, opened: list[Channel], error: Exception) -> None:
        if not opened or not isinstance(error, Rejected):
            return
        # Of this channel alone: an exchange is missing, or not allowed.
        (channel,) = opened
        self._settle(self._sent_on(channel), error)
        if channel is self._channel:
            self._channel = None
            self._session.restore_soon(self, str(error))
        else:
            self.resume()

    def _confirmed(self, offset: int, tag: int, multiple: bool, taken: bool) -> None:
        if offset == self._offset:
            self._heard = self._loop.time()
        end = offset + tag
        tags = [end]
        if multiple:
            # Those of a channel before come first.
            own = itertools.dropwhile(lambda each: each <= offset, self.unconfirmed)
            tags = list(itertools.takewhile(lambda each: each <= end, own))
        for each in tags:
            sending = self.unconfirmed.pop(each, None)
            if sending is None:
                continue  # it was returned
            self._sent_bytes -= len(sending.body)
            if taken:
                sending.end(None)
            else:
                sending.refused(self)
        if self._waiting:
            self.resume()

    def _returned(self, content: Content) -> None:
        _, _, exchange, key = content.arguments
        name = content.properties.message_id
        for tag, sending in self.unconfirmed.items():
            if sending.key == key and sending.exchange == exchange and sending.properties.message_id == name:
                del self.unconfirmed[tag]
                self._sent_bytes -= len(sending.body)
                sending.no_route()
                return

    def _longest(self) -> tuple[float, str] | None:
        """Return how long a message waits, and which; where the channel of the last ones is silent, open another."""
        now = self._loop.time()
        first = next((each.since for number, each in self.unconfirmed.items() if number > self._offset), now)
        if now - max(first, self._heard) > _SILENT:
            # RabbitMQ asks a leader that is gone again for each message, and tells of none before it has asked for all.
            self._renew_soon()
        sending = next(iter(self.unconfirmed.values()), None)
        return None if sending is None else (now - sending.since, f"a message for {sending.key!r}")


def _refusal(sending: Sending, error: Exception) -> RedpollError | None:
    """Return the error of a message that the server refused as it closed a channel; None if that was another one."""
    # access to exchange 'e' in vhost '/' refused; access to topic 'k' in exchange 'e' in vhost '/' refused
    if not isinstance(error, Rejected):
        return None
    exchange = f"exchange '{sending.exchange or 'amq.default'}' in vhost"
    if error.code == 404 and _names(error.text, "exchange '", exchange):
        return NoRoute(sending.exchange, "declare the exchange")
    if error.code == 403:
        topic = "access to topic '" in error.text
        if _names(
            error.text, *(("topic '", f"topic '{sending.key}' in {exchange}") if topic else ("exchange '", exchange))
        ):
            return NotAuthorized(error.text)
    return None


def _names(text: str, begin: str, name: str) -> bool:
    """Return True if a name that begins so is in a text of the server, as far as that goes: it may have been cut."""
    if name in text or not text.endswith(_CUT):
        return name in text
    # In bytes: it may have been cut within a character.
    kept = text.removesuffix(_CUT).encode(errors="surrogateescape")
    _, found, rest = kept.partition(begin.encode())
    return bool(found) and name.encode().startswith(found + rest)
