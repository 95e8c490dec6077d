"""The settings of all queues, in a stream that every engine reads from its beginning.

AMQP cannot say how a queue was declared, nor which queues there are. The stream puts the declarations of all programs into
one order, which each of them applies in the same way: the first declaration of a name counts until the queue is deleted,
or an update takes its place.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

from redpoll.bus.engines.amqp.link import Channel, Rejected
from redpoll.bus.engines.amqp.publishing import Publisher, Sending
from redpoll.bus.engines.amqp.session import Session
from redpoll.bus.engines.amqp.topology import CATALOGUE, catalogue
from redpoll.bus.engines.amqp.wire import Content, Properties
from redpoll.bus.records import QueueSpec
from redpoll.errors import RedpollError

__all__ = ["Catalogue"]

_log = logging.getLogger("redpoll.bus")

#: Records under way from the server.
_PREFETCH: Final = 500
#: Seconds that starting waits for records: for the first one, and for those that the server had then.
_EMPTY: Final = 0.1
_PATIENCE: Final = 0.5
#: Seconds that a record may take to come back.
_WRITTEN: Final = 5.0


class Catalogue:
    """The settings of queues by their names.

    Args:
        session: The session.
        publisher: Publishes.
        changed: Is called with a name and its settings, None if the queue was deleted.
    """

    label = "the list of queues"

    def __init__(
        self, session: Session, publisher: Publisher, changed: Callable[[str, QueueSpec | None], object]
    ) -> None:
        self.specs: dict[str, QueueSpec] = {}
        self._session = session
        self._publisher = publisher
        self._changed = changed
        self._channel: Channel | None = None
        self._next = 0
        self._end = 0
        self._caught_up: asyncio.Future[None] | None = None
        self._writing: dict[str, asyncio.Future[None]] = {}

    async def restore(self) -> None:
        """Declare the stream, and read what is new in it."""
        await self._session.declare_queue(catalogue())
        channel = await self._session.incoming.channel(self._closed)
        await channel.ask("basic.qos", 0, _PREFETCH, 0)
        start: int | str = self._next or "first"
        caught_up = self._caught_up = asyncio.get_running_loop().create_future()
        self._channel = channel
        # The last records say how far to read: nothing else does, not even the number of messages.
        await channel.consume(CATALOGUE, "last", self._last, bool, arguments={"x-stream-offset": "last"})
        await channel.consume(CATALOGUE, "catalogue", self._came, self._cancelled, arguments={"x-stream-offset": start})
        with suppress(TimeoutError):
            async with asyncio.timeout(_EMPTY):
                await asyncio.shield(caught_up)
        if self._end > self._next:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE):
                    await asyncio.shield(caught_up)
        await channel.cancel("last")

    def _last(self, content: Content) -> None:
        if self._channel is not None:
            self._channel.settle(content.arguments[1])
        self._end = max(self._end, (content.properties.headers or {}).get("x-stream-offset", 0) + 1)
        self._look_caught_up()

    def _look_caught_up(self) -> None:
        caught_up = self._caught_up
        if caught_up is not None and not caught_up.done() and 0 < self._end <= self._next:
            caught_up.set_result(None)

    def suspend(self, _: Exception) -> None:
        """Note that its channel is gone."""
        self._channel = None

    def _closed(self, error: Exception) -> None:
        if isinstance(error, Rejected):
            self._session.restore_soon(self, str(error), 0.5)

    def _cancelled(self) -> None:
        self._session.restore_soon(self, "the server ended its consumer", 0.5)

    def _came(self, content: Content) -> None:
        properties = content.properties
        offset = (properties.headers or {}).get("x-stream-offset", self._next)
        if self._channel is not None:
            self._channel.settle(content.arguments[1])
        if offset < self._next:
            return  # a chunk begins before what was asked for
        self._next = offset + 1
        try:
            self._apply(json.loads(content.body))
        except (ValueError, KeyError, TypeError, RedpollError) as error:
            _log.warning("a record in the list of queues cannot be read: %s", error)
        future = self._writing.pop(properties.message_id or "", None)
        if future is not None and not future.done():
            future.set_result(None)
        self._look_caught_up()

    def _apply(self, record: dict[str, Any]) -> None:
        name = record["name"]
        if record["change"] == "delete":
            if self.specs.pop(name, None) is not None:
                self._changed(name, None)
            return
        if record["change"] == "new" and name in self.specs:
            return
        values = record["spec"]
        known = {key: value for key, value in values.items() if key in QueueSpec.__dataclass_fields__}
        spec = QueueSpec(**{**known, "topics": tuple(known.get("topics", ()))})
        if self.specs.get(name) != spec:
            self.specs[name] = spec
            self._changed(name, spec)

    async def write(self, change: str, name: str, spec: QueueSpec | None) -> QueueSpec | None:
        """Write a record, and return the settings of the queue that count after it.

        Args:
            change: "new", which counts if there is none of that name, "update", or "delete".
            name: Name of the queue.
            spec: The settings; None deletes.
        """
        record = {"change": change, "name": name, "spec": None if spec is None else asdict(spec)}
        number = uuid.uuid4().hex
        properties = Properties("application/json", delivery_mode=2, message_id=number)
        future = self._writing[number] = asyncio.get_running_loop().create_future()
        sending = Sending("", CATALOGUE, properties, json.dumps(record).encode(), mandatory=True, again=True)
        self._publisher.send(sending)
        try:
            async with asyncio.timeout(_WRITTEN):
                await sending.wait()
                await future
        except TimeoutError:
            # The servers that have the stream are away: it has the record later.
            self._apply(record)
        finally:
            self._writing.pop(number, None)
        return self.specs.get(name)
