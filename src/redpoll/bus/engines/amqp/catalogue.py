"""The settings of all queues, in a stream that every engine reads from its beginning.

AMQP cannot say how a queue was declared, nor which queues there are. The stream puts the declarations of all programs into
one order, which each of them applies in the same way: the first declaration of a name counts until the queue is deleted,
or an update takes its place.

On each connection the stream is read anew, since it may be another one. RabbitMQ 3.10 loses the streams of a server that was
killed: it refuses to declare, to consume and to delete them. The next one has a number behind its name, and those who
know settings write them into it.
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

from redpoll.bus.engines.amqp import topology as t
from redpoll.bus.engines.amqp.link import Channel, Rejected
from redpoll.bus.engines.amqp.publishing import Publisher, Sending
from redpoll.bus.engines.amqp.session import Session
from redpoll.bus.engines.amqp.wire import Content, Properties
from redpoll.bus.records import QueueSpec

__all__ = ["Catalogue"]

_log = logging.getLogger("redpoll.bus")

#: Records that the stream does not have yet: the oldest is forgotten, as a broker has no more queues.
_UNWRITTEN: Final = 100_000
#: Records under way from the server.
_PREFETCH: Final = 500
#: Seconds that starting waits for the records that there are.
_PATIENCE: Final = 0.5
#: Seconds that a record may take to come back.
_WRITTEN: Final = 5.0
#: Seconds between two looks where another program is making the stream.
_PAUSE: Final = 0.05
#: Seconds for which a lost stream is waited for, of one server and of a cluster; and the number of those that may be lost.
_LOST, _LOST_CLUSTER, _NUMBERS = 3.0, 30.0, 100


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
        self._name = ""
        self._channel: Channel | None = None
        # The records read so far, until these are all that the stream had at first; None is a queue that was deleted.
        self._reading: dict[str, QueueSpec | None] | None = None
        self._next = self._end = 0
        self._caught_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lost_at: float | None = None
        # False while the server has refused it.
        self._there = True
        # Records that did not come back yet, and those who wait for that.
        self._unwritten: dict[str, dict[str, Any]] = {}
        self._writing: dict[str, asyncio.Future[None]] = {}

    # -- the stream

    async def restore(self) -> None:
        """Declare the stream, and read it."""
        try:
            await self._restore()
        except Rejected:
            self._there = False
            raise
        self._there = True
        await self.known(_PATIENCE)

    async def _restore(self) -> None:
        self._name = await self._found()
        self._reading, self._next, self._end = {}, 0, 0
        if self._caught_up.done():
            self._caught_up = asyncio.get_running_loop().create_future()
        async with self._session.incoming.opening(self._closed) as channel:
            await channel.ask("basic.qos", 0, _PREFETCH, 0)
            self._channel = channel
            # The last records say how far to read: nothing else does, not even the number of messages.
            for tag, take, start in (("last", self._last, "last"), ("catalogue", self._came, "first")):
                await channel.consume(self._name, tag, take, self._cancelled, arguments={"x-stream-offset": start})
            for number in self._unwritten:
                self._send(number)

    async def known(self, seconds: float | None = None) -> None:
        """Wait until all records are read, for as long as a record may take to come back, or for so many seconds."""
        if not self._caught_up.done() and self._there and not self._session.is_blocked:
            with suppress(TimeoutError):
                async with asyncio.timeout(_WRITTEN if seconds is None else seconds):
                    await asyncio.shield(self._caught_up)

    async def _found(self) -> str:
        """Return the name of the stream, which is made if there is none."""
        lost: Rejected | None = None
        number = 0
        while number < _NUMBERS:
            declaration = t.catalogue(number)
            try:
                await self._session.ask("queue.declare", 0, declaration.name, 1, {})
                missing = False
            except Rejected as error:
                if error.code != 404:
                    raise
                if "no queue" not in error.text:
                    lost = error
                    number += 1
                    continue
                missing = True
            if missing and lost is not None:
                now = self._session.time()
                self._lost_at = now if self._lost_at is None else self._lost_at
                if now - self._lost_at < (_LOST_CLUSTER if self._session.several else _LOST):
                    raise lost
            if await self._is_made(declaration, missing):
                return declaration.name
            await asyncio.sleep(_PAUSE)
        raise lost or Rejected(404, "there is no stream")

    async def _is_made(self, declaration: t.Declaration, missing: bool) -> bool:
        """Make the stream if it is missing; return False while another program does so.

        RabbitMQ 3.10 answers with an internal error, and ends the connection, where two make a stream at the same time, and
        where one is consumed that is being made.
        """
        lock = t.lock(declaration.name)
        try:
            if missing:
                await self._session.declare_queue(lock)
            try:
                if missing:
                    await self._session.declare_queue(declaration)
                    # With a record that says nothing it has a last one, up to which to read.
                    self._name = declaration.name
                    self._note("delete", "", None)
            finally:
                await self._session.ask("queue.delete", 0, lock.name, 0)
        except Rejected as error:
            if error.code != 405:
                raise
            return False
        return True

    def suspend(self, _: Exception) -> None:
        """Note that its channel is gone."""
        self._channel = None

    def _closed(self, error: Exception) -> None:
        if isinstance(error, Rejected):
            self.suspend(error)
            self._session.restore_soon(self, str(error), 0.5)

    def _cancelled(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.abandon()
        self._session.restore_soon(self, "the server ended its consumer", 0.5)

    # -- what is read

    def _settle(self, content: Content) -> int:
        """Acknowledge a record, and return its number in the stream, from 1."""
        if self._channel is not None:
            self._channel.settle(content.arguments[1])
        offset: int = (content.properties.headers or {}).get("x-stream-offset", 0)
        return offset + 1

    def _last(self, content: Content) -> None:
        self._end = max(self._end, self._settle(content))
        self._look_soon()

    def _came(self, content: Content) -> None:
        self._next = self._settle(content)
        number = content.properties.message_id or ""
        self._unwritten.pop(number, None)
        try:
            change, name, spec = _read(content.body)
        except Exception as error:  # noqa: BLE001  # any client may write to the list
            _log.warning("a record in the list of queues cannot be read: %s", error)
        else:
            if self._reading is None:
                self._apply(change, name, spec)
            elif change != "new" or self._reading.get(name) is None:
                self._reading[name] = spec
        if self._reading is not None:
            self._look_soon()
        elif number in self._writing and not self._writing[number].done():
            self._writing[number].set_result(None)

    def _look_soon(self) -> None:
        if self._reading is not None and 0 < self._end <= self._next:
            # Records that came together are read together.
            asyncio.get_running_loop().call_soon(self._look, self._reading)

    def _look(self, reading: dict[str, QueueSpec | None]) -> None:
        """Apply what was read, once that is everything."""
        if self._reading is not reading:
            return
        self._reading = None
        self._lost_at = None
        unknown = {name: spec for name, spec in self.specs.items() if name not in reading}
        for name, spec in reading.items():
            self._set(name, spec)
        self._write_all(unknown)
        for number, future in self._writing.items():
            if number not in self._unwritten and not future.done():
                future.set_result(None)
        if not self._caught_up.done():
            self._caught_up.set_result(None)
        if self._channel is not None:
            self._session.spawn(self._channel.cancel("last"))

    def _apply(self, change: str, name: str, spec: QueueSpec | None) -> None:
        if change != "new" or name not in self.specs:
            self._set(name, spec)

    def _set(self, name: str, spec: QueueSpec | None) -> None:
        if self.specs.get(name) == spec:
            return
        if spec is None:
            del self.specs[name]
        else:
            self.specs[name] = spec
        self._changed(name, spec)

    # -- what is written

    def _note(self, change: str, name: str, spec: QueueSpec | None) -> str:
        number = uuid.uuid4().hex
        if change != "new":
            # It counts whatever was written before it.
            for each in [each for each, record in self._unwritten.items() if record["name"] == name]:
                del self._unwritten[each]
        if len(self._unwritten) >= _UNWRITTEN:
            forgotten = self._unwritten.pop(next(iter(self._unwritten)))
            _log.warning("the list of queues takes no records: that of %r is not written", forgotten["name"])
        self._unwritten[number] = {"change": change, "name": name, "spec": None if spec is None else asdict(spec)}
        if self._channel is not None:
            self._send(number)
        return number

    def _send(self, number: str) -> None:
        properties = Properties("application/json", delivery_mode=2, message_id=number)
        self._publisher.send(Sending("", self._name, properties, json.dumps(self._unwritten[number]).encode()))

    def _write_all(self, specs: dict[str, QueueSpec]) -> None:
        """Write settings that the stream does not have: it is another one than before."""
        noted = {record["name"] for record in self._unwritten.values()}
        for name in specs.keys() - noted:
            self._note("new", name, specs[name])

    async def write(self, change: str, name: str, spec: QueueSpec | None) -> QueueSpec | None:
        """Write a record, and return the settings of the queue that count after it.

        Args:
            change: "new", which counts if there is none of that name, "update", or "delete".
            name: Name of the queue.
            spec: The settings; None deletes.
        """
        number = self._note(change, name, spec)
        future = self._writing[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(_WRITTEN if self._there and not self._session.is_blocked else 0.0):
                await future
        except TimeoutError:
            # Nobody reads it now: the stream has it later.
            self._apply(change, name, spec)
        finally:
            self._writing.pop(number, None)
        return self.specs.get(name)


def _read(body: bytes) -> tuple[str, str, QueueSpec | None]:
    """Return the change of a record, the name of the queue, and its settings.

    Raises:
        Exception: It cannot be read.
    """
    record = json.loads(body)
    change, name = record["change"], record["name"]
    if type(name) is not str:
        raise TypeError(f"the name of a queue is a string, not {name!r}")
    if change == "delete":
        return change, name, None
    known = {key: value for key, value in record["spec"].items() if key in QueueSpec.__dataclass_fields__}
    return change, name, QueueSpec(**{**known, "topics": tuple(known.get("topics", ()))})
