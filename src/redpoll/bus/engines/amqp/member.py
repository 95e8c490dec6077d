"""The life of an engine on RabbitMQ: how it is connected, what it has, how it ends."""

from __future__ import annotations

import asyncio
import itertools
import logging
import ssl
import uuid
import warnings
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Self

from redpoll.bus.awaitables import resolve
from redpoll.bus.engine import Observer
from redpoll.bus.engines.amqp import topology as t
from redpoll.bus.engines.amqp.catalogue import Catalogue
from redpoll.bus.engines.amqp.consumers import AmqpConsumer, AmqpSubscription
from redpoll.bus.engines.amqp.foreign.foreign import Foreign
from redpoll.bus.engines.amqp.handles import AmqpDelivery
from redpoll.bus.engines.amqp.inbox import Inbox
from redpoll.bus.engines.amqp.lacking import REMEDIES, Lacking
from redpoll.bus.engines.amqp.link import Channel, Login
from redpoll.bus.engines.amqp.parts import EngineParts
from redpoll.bus.engines.amqp.publishing import Alarm, Alarms, Publisher
from redpoll.bus.engines.amqp.results import Results
from redpoll.bus.engines.amqp.session import Session
from redpoll.bus.engines.amqp.submitting import Submit
from redpoll.bus.engines.amqp.will import Will
from redpoll.bus.engines.base import EngineBase
from redpoll.bus.engines.hub.client import HubEngine
from redpoll.bus.envelope import Outcome, OutcomeKind
from redpoll.bus.records import (
    Capabilities,
    QueueSpec,
)
from redpoll.bus.state import EngineState, Status
from redpoll.checks import check_function
from redpoll.errors import (
    Closed,
    NoRoute,
    UsageError,
)

__all__ = ["MAX_BODY", "AmqpMember"]

_log = logging.getLogger("redpoll.bus")

MAX_BODY: Final = 16 * 2**20
"""The largest body, in bytes, unless told otherwise: what RabbitMQ 4 takes."""

#: Seconds for which a queue is taken to have a consumer, after it was seen, and after an outcome came from there.
_PRESENT: Final = 0.001
#: Ids of tasks that ended, for a `cancel` that comes too late.
_ENDED: Final = 1_000
#: Seconds that outcomes have to be confirmed when an engine is closed.
_GOODBYE: Final = 5.0


class AmqpMember(EngineBase, Lacking):
    """See `redpoll.bus.engine.Engine`.

    Args:
        hosts: Hosts and ports, which are tried in turn.
        login: Data of the handshake.
        tls: For encrypted connections.
        wait: Whether a broker that is not there is waited for, in the background.
        connect_timeout: Seconds that starting may take, where it does not wait.
        split: True (default) for two connections: one for what is published, one for what is consumed.
        max_body: The largest body, in bytes.
        results: A hub that keeps what RabbitMQ cannot; None is none.
        consumer_timeout: Seconds for which the server leaves a delivery open, as its operator set it, where the server
            cannot be told (before 3.11.15). None: its default, half an hour.
    """

    def __init__(
        self,
        hosts: tuple[tuple[str, int], ...],
        login: Login,
        *,
        tls: ssl.SSLContext | None = None,
        wait: bool = False,
        connect_timeout: float = 5.0,
        split: bool = True,
        max_body: int = MAX_BODY,
        consumer_timeout: float | None = None,
        results: HubEngine | None = None,
    ) -> None:
        self.status = Status()
        self.store = uuid.uuid4().hex[:16]
        self.max_body = self._max_body = max_body
        self._wait = wait
        self._connect_timeout = connect_timeout
        self._hosts = hosts
        self.session = Session(
            hosts, replace(login, name=login.name or f"redpoll {self.store}"), tls, self.status, split, consumer_timeout
        )
        self._capabilities = Capabilities(
            engine="amqp",
            confirm="replicated",
            results="live",
            max_body=max_body,
            dedup=False,
            fencing=False,
            attempts="given",
            browse=False,
            cancel=False,
            waits_in_order=False,
            last=False,
            successors=False,
            schedule=False,
            hold=self.session.hold,
            remedies=REMEDIES,
        )
        self.results = None if results is None else Results(results)
        self._serials = itertools.count(1)
        self._numbers = itertools.count(1)
        self._present: dict[str, float] = {}
        self._checking: dict[str, list[tuple[Submit, float]]] = {}
        self._recent: OrderedDict[str, None] = OrderedDict()
        self._deadlines: dict[str, Alarm] = {}
        self._subscriptions: dict[AmqpSubscription, None] = {}
        self._consumers: dict[AmqpConsumer, None] = {}
        self._takes: dict[asyncio.Task[Any], None] = {}
        self._getting: Channel | None = None
        # Until when a hub that is away has time to take outcomes as this closes.
        self._until: float | None = 0.0
        super().__init__()

    def __del__(self) -> None:
        """Warn of one that was not closed."""
        if not self.closed:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        where = ",".join(f"{host}:{port}" for host, port in self._hosts)
        return f"<AmqpEngine amqp://{where} {self.status.state.value}>"

    def _check(self) -> None:
        refusal = self.refusal()
        if refusal is not None:
            raise refusal

    # -- life

    async def __aenter__(self) -> Self:
        """Start on the running loop, and connect."""
        if self.status.state is not EngineState.CONNECTING or not self.closed or self._closing is not None:
            raise UsageError("this engine was started before", "make another one")
        self.loop = asyncio.get_running_loop()
        session = self.session
        self.publisher = publisher = Publisher(session)
        session.settled = publisher.flush
        self.catalogue = Catalogue(session, publisher, self._changed)
        self.inbox = inbox = Inbox(session, publisher, f"redpoll.inbox.{self.store}")
        inbox.ended = self._over
        inbox.came = self._came_from
        self.alarms = Alarms(self.loop)
        self.foreign = Foreign(session)
        will = Will(session, publisher, f"redpoll.will.{self.store}")
        self.parts = EngineParts(
            self.store, session, publisher, inbox, self.alarms, will, self.max_body, self.catalogue.specs.get
        )
        self.parts.results = self.results
        inbox.died = self._died
        self.closed = False
        session.begin_with(_Exchanges(session), publisher, inbox)
        session.want(self.catalogue)
        try:
            if self.results is not None:
                await self.results.hub.__aenter__()
                status = self.results.hub.status
                status.watch(self._hub_changed)
                self._hub_changed(status.state, status.reason)
            await session.open(self._connect_timeout, self._wait)
        except BaseException:
            await self._end()
            raise
        return self

    def _stop_all(self) -> None:
        """End all consumers, takes and subscriptions."""
        for subscription in list(self._subscriptions):
            subscription.stop()
        for task in list(self._takes):
            task.cancel()
        for consumer in list(self._consumers):
            consumer.stop(None)

    async def _drain(self, seconds: float | None) -> None:
        self._stop_all()
        until = None if seconds is None else self.loop.time() + seconds
        if self.parts.open and seconds != 0:
            drained: asyncio.Future[None] = self.loop.create_future()
            self.parts.drained = lambda: resolve(drained)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await drained
            self.parts.drained = None
        self._until = until

    async def _end(self) -> None:
        """Give all tasks back, settle everything, disconnect."""
        error = Closed("bus")
        # Those that began while it drained.
        self._stop_all()
        for delivery in list(self.parts.open):
            if isinstance(delivery, AmqpDelivery):
                delivery.abandon()
        self.closed = True
        self.inbox.close(error)
        if self.results is not None:
            # Outcomes of tasks are recorded there before RabbitMQ is told.
            left = None if self._until is None else max(0.0, self._until - self.loop.time())
            await self.results.hub.close(left)
            self.unrecorded = self.results.hub.unrecorded
        try:
            if self.session.ready:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_GOODBYE):
                        # Outcomes of tasks that ended here.
                        await self.publisher.flush()
                        await self.inbox.delete()
            await self.foreign.flush()
        finally:
            self.publisher.close(error)
            self.foreign.close(error)
            self.alarms.close()
            await self.session.close()
            self.status.change(EngineState.CLOSED)

    def abort(self) -> None:
        """Leave without goodbye, as a process that is killed. For tests."""
        if self.refusal() is None:
            self.closed = True
            if self.results is not None:
                self.results.hub.abort()
            self.session.abort()
            self.alarms.close()
            self.status.change(EngineState.CLOSED, "aborted")

    def _changed(self, name: str, spec: QueueSpec | None) -> None:
        """Apply what any program has done with a queue."""
        if spec is None:
            self._gone(name)
            return
        for consumer in self._consumers:
            if consumer.queue == name:
                consumer.renew()

    def _gone(self, name: str) -> None:
        outcome = Outcome(OutcomeKind.CANCELLED, None, "its queue was deleted")
        for task, watch in list(self.inbox.watches.items()):
            if watch.queue == name or watch.queue.startswith(f"{name}.priority."):
                if task not in self.inbox.working:
                    self.parts.note("cancelled", name, task)
                self.inbox.end(task, outcome)
        for consumer in list(self._consumers):
            if consumer.queue == name:
                consumer.stop(NoRoute(name))
        self.parts.forget(name)
        self._present.pop(name, None)
        self.parts.note("deleted", name)

    def _died(self, queue: str, task: str, reason: str) -> None:
        if self.results is not None:
            self.session.spawn(self.results.bury(self.catalogue.specs.get(queue) or QueueSpec(queue), task, reason))

    def _hub_changed(self, state: EngineState, reason: str) -> None:
        if self.results is not None:
            # A hub tells its largest body as it answers.
            self._capabilities = self.results.added_to(self._capabilities, self._max_body)
            self.max_body = self.parts.max_body = self._capabilities.max_body
        gone = state is not EngineState.READY and not self.closed
        what = f"the hub for results is {state.value}{f': {reason}' if reason else ''}"
        self.session.reason("hub", what if gone else None)

    def _over(self, task: str) -> None:
        """Note that the outcome of a task is known."""
        alarm = self._deadlines.pop(task, None)
        if alarm is not None:
            alarm.cancel()
        self._recent[task] = None
        if len(self._recent) > _ENDED:
            self._recent.popitem(last=False)

    def _came_from(self, queue: str) -> None:
        self._present[queue] = self.loop.time() + _PRESENT

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Call a function with what this program does with its queues."""
        check_function("observer", observer, "an observer is a plain function of four arguments")
        self._check()
        observers = self.parts.observers
        observers.append(observer)

        def end() -> None:
            if observer in observers:
                observers.remove(observer)

        return end


class _Exchanges:
    """The exchanges, which are there before all else."""

    label = "the exchanges"

    def __init__(self, session: Session) -> None:
        self._session = session

    async def restore(self) -> None:
        """Declare them."""
        await self._session.declare_exchanges(t.exchanges())

    def suspend(self, error: Exception) -> None:
        """Do nothing: they stay."""
