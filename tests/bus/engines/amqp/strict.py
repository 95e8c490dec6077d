"""A server that speaks AMQP 0-9-1 as a given version of RabbitMQ: it refuses what that refuses, and records what it is told.

It holds no message: what is published reaches a consumer of a queue that is bound by that very key, or nobody.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Self

from redpoll.bus.engines.amqp.topology import CATALOGUE
from redpoll.bus.engines.amqp.wire import Frames, Properties, encode, encode_content

DURABLE, EXCLUSIVE = 2, 4
_BASIC_PUBLISH = len(encode(1, "basic.publish", 0, "", "", 0))


class Strict:
    """The server.

    Args:
        version: Its version.

    Attributes:
        told: Each method that clients sent: its name and its arguments.
        published: Each message that clients published: its routing key and its properties.
        problems: What it refused.
        deaf: Tags of consumers that are given nothing.
        silent: Numbers of channels on which nothing is confirmed.
        held: Names of methods that are not answered.
    """

    def __init__(self, version: str) -> None:
        self.told: list[tuple[str, tuple[Any, ...]]] = []
        self.published: list[tuple[str, Properties]] = []
        self.problems: list[str] = []
        self.deaf: set[str] = set()
        self.silent: set[int] = set()
        self.held: set[str] = set()
        self.version = version
        self.number = tuple(int(part) for part in version.split("-", maxsplit=1)[0].split("."))
        self._queues: set[str] = set()
        self._bound: dict[tuple[str, str], str] = {}
        self._consumers: dict[str, list[tuple[_Client, int, str]]] = {}
        self._server: asyncio.Server | None = None
        self.clients: list[_Client] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.get_running_loop().create_server(lambda: _Client(self), "127.0.0.1", 0)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._server is not None
        self._server.close()
        for client in self.clients:
            client.transport.abort()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        """What a client connects to."""
        assert self._server is not None
        return f"amqp://guest:guest@127.0.0.1:{self._server.sockets[0].getsockname()[1]}/"

    def of(self, name: str) -> list[tuple[Any, ...]]:
        """Return the arguments of each method of that name."""
        return [arguments for each, arguments in self.told if each == name]

    def problem(self, name: str, arguments: tuple[Any, ...]) -> tuple[int, str] | None:
        """Return the number and the text with which it ends a connection for what this version refuses; or None.

        4.3 has no transient queue that is not exclusive, no prefetch for a whole channel, and no mirrored queue; other
        versions have no consumer timeout before 3.11.15, and know no argument of a queue that they do not.
        """
        found = None
        if name == "queue.declare" and not arguments[2] & 1:
            bits, table = arguments[2], arguments[3]
            if not bits & (DURABLE | EXCLUSIVE) and self.number >= (4, 3):
                found = 541, "INTERNAL_ERROR - Feature `transient_nonexcl_queues` is deprecated"
            elif any(each.startswith("x-ha-") for each in table):
                found = 406, "PRECONDITION_FAILED - classic queue mirroring"
            elif table.get("x-queue-type") in {"quorum", "stream"} and not bits & DURABLE:
                found = 406, "PRECONDITION_FAILED - invalid property 'non-durable'"
            elif table.get("x-queue-type", "classic") == "classic" and {"x-delivery-limit"} & set(table):
                found = 406, "PRECONDITION_FAILED - invalid arg 'x-delivery-limit'"
        elif name == "basic.qos" and arguments[2] and self.number >= (4, 3):
            found = 541, "INTERNAL_ERROR - Feature `global_qos` is deprecated"
        elif name == "basic.consume" and "x-consumer-timeout" in arguments[4] and self.number < (3, 11, 15):
            found = 406, "PRECONDITION_FAILED - unknown argument"
        if found is not None:
            self.problems.append(found[1])
        return found

    # -- what it does

    def queue(self, name: str, passive: bool) -> bool:
        """Declare a queue, or look for it; return False if there is none."""
        if not passive:
            self._queues.add(name)
            self._bound["", name] = name
        return name in self._queues

    def bind(self, queue: str, exchange: str, key: str) -> None:
        """Bind a queue."""
        self._bound[exchange, key] = queue

    def consume(self, queue: str, consumer: tuple[_Client, int, str]) -> None:
        """Add a consumer of a queue."""
        self._consumers.setdefault(queue, []).append(consumer)

    def leave(self, client: _Client) -> None:
        """End the consumers of a client that has gone."""
        for queue, consumers in self._consumers.items():
            self._consumers[queue] = [each for each in consumers if each[0] is not client]

    def route(self, exchange: str, key: str) -> tuple[str, list[tuple[_Client, int, str]]]:
        """Return a queue, "" where there is none, and its consumers, the latest last: a stream has several."""
        # Exchanges of topics are taken to route anything, as delays do.
        queue = self._bound.get((exchange, key), "?" if exchange.startswith("redpoll.delay") else "")
        found = self._consumers.get(queue, [])
        return queue, found if queue.startswith(CATALOGUE) else found[-1:]


class _Client(asyncio.Protocol):
    """A connection of a client."""

    transport: asyncio.Transport

    def __init__(self, server: Strict) -> None:
        self._server = server
        self._frames = Frames()
        self._begun = False
        self._tags: dict[int, int] = {}
        self._given = 0
        self._publish: dict[int, tuple[Any, ...]] = {}
        server.clients.append(self)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.leave(self)

    def send(self, channel: int, name: str, *arguments: Any) -> None:
        """Send a method."""
        self.transport.write(encode(channel, name, *arguments))

    def data_received(self, data: bytes) -> None:
        if not self._begun:
            self._begun, data = True, data[8:]
            properties = {
                "product": "RabbitMQ",
                "version": self._server.version,
                "capabilities": {"accept_consumer_cancel_ok": True} if self._server.number >= (4, 3) else {},
            }
            self.send(0, "connection.start", 0, 9, properties, "PLAIN AMQPLAIN", "en_US")
        for frame in self._frames.feed(data):
            self._take(frame.channel, frame.name, frame.arguments, frame)

    def _take(self, channel: int, name: str, arguments: tuple[Any, ...], frame: Any) -> None:
        server = self._server
        if name == "heartbeat":
            return
        server.told.append((name, arguments))
        problem = server.problem(name, arguments)
        if problem is not None:
            self.send(0, "connection.close", *problem, 0, 0)
            return
        match name:
            case "connection.start-ok":
                self.send(0, "connection.tune", 2_047, 131_072, 60)
            case "connection.tune-ok" | "channel.close-ok" | "basic.ack" | "basic.nack" | "basic.cancel-ok":
                pass
            case _ if name in server.held or name == "connection.close-ok":
                pass
            case "connection.open" | "channel.open":
                self.send(channel, f"{name}-ok", "")
            case "queue.declare":
                if server.queue(arguments[1], bool(arguments[2] & 1)):
                    self.send(channel, "queue.declare-ok", arguments[1], 0, 1)
                else:
                    self.send(channel, "channel.close", 404, f"NOT_FOUND - no queue '{arguments[1]}'", 50, 10)
            case "queue.bind":
                server.bind(*arguments[1:4])
                self.send(channel, "queue.bind-ok")
            case "queue.delete":
                self.send(channel, "queue.delete-ok", 0)
            case "basic.consume":
                server.consume(arguments[1], (self, channel, arguments[2]))
                self.send(channel, "basic.consume-ok", arguments[2])
            case "basic.cancel":
                self.send(channel, "basic.cancel-ok", arguments[0])
            case "basic.publish":
                self._published(channel, arguments, frame.properties, frame.body)
            case _:
                self.send(channel, f"{name}-ok")

    def _published(self, channel: int, arguments: tuple[Any, ...], properties: Properties, body: bytes) -> None:
        _, exchange, key, bits = arguments
        self._server.published.append((key, properties))
        queue, consumers = self._server.route(exchange, key)
        self._tags[channel] = tag = self._tags.get(channel, 0) + 1
        if not queue and bits & 1:
            self._content(channel, ("basic.return", 312, "NO_ROUTE", exchange, key), properties, body)
        if queue.startswith(CATALOGUE):
            properties = properties._replace(headers={"x-stream-offset": tag})
        for client, number, name in (each for each in consumers if each[2] not in self._server.deaf):
            client.deliver(number, name, exchange, key, properties, body)
        if channel not in self._server.silent:
            self.send(channel, "basic.ack", tag, 0)

    def published(self, channel: int) -> int:
        """Return how many messages were published on a channel."""
        return self._tags.get(channel, 0)

    def deliver(
        self, channel: int, consumer: str, exchange: str, key: str, properties: Properties, body: bytes
    ) -> None:
        """Give a message to a consumer."""
        self._given += 1
        self._content(channel, ("basic.deliver", consumer, self._given, 0, exchange, key), properties, body)

    def _content(self, channel: int, method: tuple[Any, ...], properties: Properties, body: bytes) -> None:
        parts = encode_content(channel, "", "", 0, properties, body, 131_072)
        with suppress(OSError):
            self.transport.write(encode(channel, *method) + b"".join(parts)[_BASIC_PUBLISH:])
