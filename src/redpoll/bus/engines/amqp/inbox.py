"""Messages that return to a program: outcomes and progress of its tasks, and those of publishers to the tasks it works on.

All of it arrives in one queue, which outlives a connection. Dead letters arrive there too, as they have its name with them:
so the broker itself tells a publisher what became of a task that no worker ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from redpoll.bus.engine import Watcher
from redpoll.bus.engines.amqp import messages as m
from redpoll.bus.engines.amqp.link import Broken, Channel, Rejected
from redpoll.bus.engines.amqp.publishing import Publisher, Sending
from redpoll.bus.engines.amqp.session import Session
from redpoll.bus.engines.amqp.topology import CONTROL, inbox
from redpoll.bus.engines.amqp.wire import Content, Properties
from redpoll.bus.engines.handles import EngineDelivery, call
from redpoll.bus.envelope import Envelope, Outcome, OutcomeKind
from redpoll.errors import DecodeError, NoRoute, RedpollError

__all__ = ["Inbox", "Watch"]

_log = logging.getLogger("redpoll.bus")

#: Seconds that the queue is kept while its program is away.
_KEPT: Final = 60.0
#: Messages that wait there.
_MOST: Final = 100_000
_PREFETCH: Final = 1_000
#: Seconds in which the worker of a task says that it was told something.
_HEARD: Final = 1.0
#: Seconds that a message of a publisher waits for its worker.
_TOLD_MS: Final = "30000"
#: Calls that were cancelled before they came, which are remembered; the oldest is forgotten first.
_WITHDRAWN: Final = 10_000
_EXPIRED: Final = Outcome(OutcomeKind.EXPIRED, None, "its deadline passed")


class Watch:
    """A task whose outcome is waited for.

    Attributes:
        watcher: Is told.
        queue: Name of the queue that it was put into, for its level of priority.
        worker: The inbox of its worker, once it is known.
        heard: Is done when the worker says that it was told something.
    """

    __slots__ = ("heard", "queue", "watcher", "worker")

    def __init__(self, watcher: Watcher, queue: str) -> None:
        self.watcher = watcher
        self.queue = queue
        self.worker = ""
        self.heard: asyncio.Future[None] | None = None


class Inbox:
    """The inbox of an engine.

    Args:
        session: The session.
        publisher: Publishes.
        name: Name of its queue.

    Attributes:
        name: Name of its queue.
        watches: The tasks that are watched, by their ids.
        working: The deliveries that are open here, by the ids of their tasks.
        withdrawn: Why tasks were cancelled that are not here: a call may still wait in its queue, or be on its way.
        foreign: Takes what is none of these, of other programs.
        ended: Is called with the id of each task that ended.
        died: Is called with the queue and the id of a task that has a record at a hub, and was dropped, and with the reason.
        came: Is called with the name of a queue, for its level of priority, when a worker of it has ended a task.
    """

    label = "the inbox"

    def __init__(self, session: Session, publisher: Publisher, name: str) -> None:
        self.name = name
        self.watches: dict[str, Watch] = {}
        self.working: dict[str, EngineDelivery] = {}
        self.withdrawn: dict[str, str] = {}
        self.foreign: Callable[[Content], object] | None = None
        self.ended: Callable[[str], object] = bool
        self.died: Callable[[str, str, str], object] = lambda *_: None
        self.came: Callable[[str], object] = bool
        self._session = session
        self._publisher = publisher
        self._channel: Channel | None = None
        self._heard_of: set[str] = set()
        self._begun = False

    # -- the queue

    async def restore(self) -> None:
        """Declare the queue, and consume it."""
        if not await self._there():
            await self._declare()
        async with self._session.incoming.opening(self._closed) as channel:
            await channel.ask("basic.qos", 0, _PREFETCH, 0)
            channel.prefetch = _PREFETCH
            self._channel = channel
            await channel.consume(self.name, "inbox", self._came, self._cancelled)

    async def _there(self) -> bool:
        """Return True if the queue is still there: binding it again may wait for a server that has just gone."""
        if not self._begun:
            self._begun = True
            return False
        return await self._session.has_queue(self.name)

    async def _declare(self) -> None:
        await self._session.declare_queue(inbox(self.name, _KEPT, _MOST, self._session.several))
        for queue in sorted(self._heard_of):
            await self._session.ask("queue.bind", 0, self.name, CONTROL, queue, 0, {})

    def suspend(self, _: Exception) -> None:
        """Note that its channel is gone."""
        self._channel = None

    def _closed(self, error: Exception) -> None:
        if isinstance(error, Rejected):
            self._session.restore_soon(self, str(error))

    def _cancelled(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.abandon()
        self._session.restore_soon(self, "the server ended its consumer")

    async def hear(self, queue: str) -> None:
        """Take what publishers say to all that consume a queue."""
        if queue not in self._heard_of:
            self._heard_of.add(queue)
            await self._session.ask_again("queue.bind", 0, self.name, CONTROL, queue, 0, {})

    async def delete(self) -> None:
        """Delete the queue."""
        self._session.discard(self)
        try:
            await self._session.ask("queue.delete", 0, self.name, 0)
        except (Broken, Rejected) as error:
            _log.debug("the inbox could not be deleted: %s", error)

    # -- what comes

    def _came(self, content: Content) -> None:
        if self._channel is not None:
            self._channel.settle(content.arguments[1], soon=True)
        properties = content.properties
        kind, task = properties.type, properties.correlation_id or ""
        try:
            if kind == m.OUTCOME:
                watch = self.watches.get(task)
                if watch is not None:
                    self.came(watch.queue)
                self.end(task, m.outcome_of(properties, content.body))
            elif kind == m.PROGRESS:
                watch = self.watches.get(task)
                if watch is not None:
                    watch.worker = properties.reply_to or ""
                    call("a watcher", watch.watcher.progress, m.envelope_of(properties, content.body))
            elif kind in {m.TELL, m.CANCEL}:
                self._told(content, task)
            elif kind == m.HERE:
                watch = self.watches.get(task)
                if watch is not None:
                    watch.worker = properties.reply_to or ""
                    if watch.heard is not None and not watch.heard.done():
                        watch.heard.set_result(None)
            elif kind == m.LOST:
                self.end(task, Outcome(OutcomeKind.LOST, None, "its worker is gone"))
            elif (outcome := m.death(properties)) is not None:
                record = (properties.headers or {}).get(m.RECORDED)
                if record is None:
                    self.end(properties.message_id or "", outcome)
                else:
                    self.died(record, properties.message_id or "", outcome.detail)
            elif self.foreign is not None:
                self.foreign(content)
        except DecodeError as error:
            _log.warning("a message in the inbox cannot be read: %s", error)

    def _told(self, content: Content, task: str) -> None:
        delivery = self.working.get(task)
        properties = content.properties
        reason = str((properties.headers or {}).get("reason", "it was cancelled"))
        if delivery is None:
            if properties.type == m.CANCEL:
                self.withdrawn[task] = reason
                if len(self.withdrawn) > _WITHDRAWN:
                    del self.withdrawn[next(iter(self.withdrawn))]
            return
        if content.arguments[3] == CONTROL and properties.reply_to:
            here = Properties(delivery_mode=1, correlation_id=task, reply_to=self.name, type=m.HERE)
            self._publisher.send(Sending("", properties.reply_to, here, b""))
        if properties.type == m.CANCEL:
            delivery.cancel(reason)
        else:
            delivery.tell(m.envelope_of(properties, content.body))

    def end(self, task: str, outcome: Outcome) -> bool:
        """Tell the outcome of a task, unless it was told; return False then."""
        watch = self.watches.pop(task, None)
        if watch is None:
            return False
        self.ended(task)
        call("a watcher", watch.watcher.outcome, outcome)
        return True

    def expire(self, task: str, reason: str) -> None:
        """End a task whose deadline passed, and tell its worker."""
        watch = self.watches.get(task)
        if watch is not None:
            self.end(task, _EXPIRED)
            self._say(watch, task, m.CANCEL, Envelope("raw", b""), reason)

    # -- to workers

    def _say(self, watch: Watch, task: str, kind: str, envelope: Envelope, reason: str) -> Sending:
        properties = m.properties_of(
            envelope,
            {"reason": reason} if reason else {},
            delivery_mode=1,
            correlation_id=task,
            reply_to=self.name,
            expiration=_TOLD_MS,
            type=kind,
        )
        exchange, key = ("", watch.worker) if watch.worker else (CONTROL, watch.queue)
        sending = Sending(exchange, key, properties, envelope.body, mandatory=True)
        self._publisher.send(sending)
        return sending

    async def say(self, watch: Watch, task: str, kind: str, envelope: Envelope, reason: str = "") -> bool:
        """Say something to the worker of a task.

        Returns:
            False: nobody works on it.
        """
        known, heard = watch.worker, watch.heard
        if not known and heard is None:
            heard = watch.heard = asyncio.get_running_loop().create_future()
        try:
            await self._say(watch, task, kind, envelope, reason)
        except NoRoute:
            return False
        if known or heard is None:
            return True
        try:
            async with asyncio.timeout(_HEARD):
                await asyncio.shield(heard)
        except TimeoutError:
            return False
        return True

    def close(self, error: RedpollError) -> None:
        """Tell all watchers that the outcome stays unknown."""
        watches, self.watches = self.watches, {}
        for watch in watches.values():
            call("a watcher", watch.watcher.gone, error)
