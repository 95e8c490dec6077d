"""oslo.messaging's rabbit driver itself, on one RabbitMQ with ``connect("amqp://…", speak="oslo")``: each serves the other.

The numbers are those of oslo.messaging's functional tests, as docs/reference/conformance.md has them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import redpoll
from redpoll.bus import Bus, current_context, use_headers
from redpoll.bus.notifications import Notification
from redpoll.bus.rpc import Target, expected_exceptions
from redpoll.errors import CallTimeout, NoRoute, RemoteError, Unsupported
from tests.bus.engines.amqp.foreign.support import Peer, PeerError, healthy, until
from tests.rabbitmq import Broker

pytestmark = [pytest.mark.broker, pytest.mark.asyncio]

VALUES: tuple[Any, ...] = (None, 0, False, [], {}, "x", {"a": [1.5]})
BEGIN = """
import time
import oslo_messaging as om
from oslo_config import cfg
cfg.CONF([])
url = {url!r}
transport = om.get_rpc_transport(cfg.CONF, url=url)
def client(topic, timeout=20, **target):
    return om.get_rpc_client(transport, om.Target(topic=topic, **target), timeout=timeout)
log = []
class Endpoint:
    target = om.Target(version="1.5")
    def __init__(self, name): self.name = name
    def add(self, context, a, b):
        log.append([self.name, context, a, b])
        return a + b
    def subtract(self, context, a, b): raise ValueError("less than nothing")
    def same(self, context, value): return value
    def slow(self, context, seconds):
        time.sleep(seconds)
        return "slow"
def serve(topic, name):
    server = om.get_rpc_server(transport, om.Target(topic=topic, server=name), [Endpoint(name)])
    server.start()
    return server
"""


class Endpoint:
    """What our server serves."""

    target = Target(version="1.5")

    def __init__(self, name: str) -> None:
        self.name = name
        self.log: list[Any] = []

    async def add(self, a: int, b: int) -> int:
        """Add, and note who asked."""
        self.log.append([dict(current_context().headers), a, b])
        return a + b

    @expected_exceptions(ValueError)
    async def subtract(self, a: int, b: int) -> int:
        """Refuse."""
        raise ValueError("less than nothing")

    async def same(self, value: Any) -> Any:
        """Return it."""
        return value

    async def slow(self, seconds: float) -> str:
        """Take a while."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        return "slow"


@asynccontextmanager
async def both(rabbitmq: Broker) -> AsyncIterator[tuple[Bus, Peer]]:
    """A bus that speaks oslo.messaging, and a program with its transport, on one server."""
    begin = BEGIN.format(url=rabbitmq.url.replace("amqp", "rabbit"))
    async with Peer(begin) as peer, redpoll.connect(rabbitmq.url, speak="oslo") as bus:
        yield bus, peer


async def test_our_calls(rabbitmq: Broker) -> None:
    """Their server answers our calls, its context and errors included (O-01, O-05, O-08, O-09)."""
    async with both(rabbitmq) as (bus, peer):
        await peer.run("servers = [serve('calc', 'one'), serve('calc', 'two')]")
        with use_headers(user="ada"):
            assert await bus.rpc.call("calc", "add", {"a": 1, "b": 2}, server="two", timeout=20) == 3
        ((name, context, *numbers),) = await peer.run("log")
        assert (name, context["user"], numbers) == ("two", "ada", [1, 2])
        client = bus.rpc.client(Target("calc", version="1.3"), timeout=20)
        for value in VALUES:
            assert await client.same(value=value) == value
        with pytest.raises(ValueError, match="less than nothing") as caught:
            await client.subtract(a=1, b=2)
        assert "in subtract" in str(caught.value.__cause__.traceback)  # type: ignore[union-attr]
        with pytest.raises(RemoteError, match="nothing") as missing:
            await client.nothing()
        assert missing.value.kind == "NoSuchMethod"
        with pytest.raises(RemoteError) as too_new:
            await bus.rpc.call(Target("calc", version="1.6"), "same", {"value": 1}, timeout=20)
        assert too_new.value.kind == "UnsupportedVersion"
        with pytest.raises(NoRoute, match="nobody"):
            await bus.rpc.call("nobody", "same", {"value": 1}, timeout=20)
        with pytest.raises(CallTimeout):
            await bus.rpc.call("calc", "slow", {"seconds": 3}, timeout=0.5)
        # It says every second that it still works; the call may take longer than the two of its monitor.
        assert await bus.rpc.call("calc", "slow", {"seconds": 3}, timeout=30, monitor=2) == "slow"
        with pytest.raises(Unsupported, match="functions"):
            await bus.rpc.call("calc", None, 1, timeout=20)


async def test_their_calls(rabbitmq: Broker) -> None:
    """Our server answers their calls, its context and errors included (O-01, O-05, O-08, O-09, O-20)."""
    one, two = Endpoint("one"), Endpoint("two")
    async with both(rabbitmq) as (bus, peer):
        async with (
            bus.rpc.serve("calc", one, server="one"),
            bus.rpc.serve("calc", two, server="two"),
        ):
            await peer.run("calc = client('calc', version='1.3')")
            assert await peer.run("calc.prepare(server='two').call({'user': 'bob'}, 'add', a=1, b=2)") == 3
            assert (one.log, two.log) == ([], [[{"user": "bob"}, 1, 2]])
            for value in VALUES:
                assert await peer.run(f"calc.call({{}}, 'same', value={value!r})") == value
            with pytest.raises(PeerError, match="ValueError: less than nothing"):
                await peer.run("calc.call({}, 'subtract', a=1, b=2)")
            with pytest.raises(PeerError, match=r"RemoteError: .*NoSuchMethod"):
                await peer.run("calc.call({}, 'nothing')")
            with pytest.raises(PeerError, match=r"RemoteError: .*UnsupportedVersion"):
                await peer.run("client('calc', version='2.0').call({}, 'same', value=1)")
            with pytest.raises(PeerError, match="MessagingTimeout"):
                await peer.run("client('calc', timeout=1).call({}, 'slow', seconds=3)")
            # Compressed, as kombu does it.
            await peer.run("packed = om.get_rpc_transport(cfg.CONF, url=url + '?kombu_compression=gzip')")
            await peer.run("small = om.get_rpc_client(packed, om.Target(topic='calc', version='1.3'), timeout=20)")
            assert await peer.run("small.call({}, 'same', value='x' * 5000)") == "x" * 5_000
            # Our signs of life let it wait for longer than its monitor.
            slow = "calc.prepare(timeout=30, call_monitor_timeout=2).call({}, 'slow', seconds=3)"
            assert await peer.run(slow) == "slow"


async def test_one_group_of_both(rabbitmq: Broker) -> None:
    """Servers of theirs and of ours share a topic's calls and casts, and each gets what is for all (O-02, O-11 to O-13)."""
    ours = Endpoint("ours")
    async with both(rabbitmq) as (bus, peer):
        await peer.run("server = serve('calc', 'theirs'); calc = client('calc')")
        async with bus.rpc.serve("calc", ours, server="ours"):
            for number in range(7):
                assert await bus.rpc.call("calc", "add", {"a": number, "b": 0}, timeout=20) == number
                assert await peer.run(f"calc.call({{}}, 'add', a={number + 7}, b=0)") == number + 7
            theirs = [each[2] for each in await peer.run("log")]
            mine = [each[1] for each in ours.log]
            assert sorted(theirs + mine) == list(range(14))
            assert theirs
            assert mine
            ours.log.clear()
            await peer.run("log.clear()")
            await bus.rpc.fanout("calc", "add", {"a": 100, "b": 0})
            await peer.run("calc.prepare(fanout=True).cast({}, 'add', a=101, b=0)")
            await bus.rpc.cast("calc", "add", {"a": 102, "b": 0}, server="theirs")
            await peer.run("calc.prepare(server='ours').cast({}, 'add', a=103, b=0)")
            await until(lambda: len(ours.log) == 3)
            await peer.until("len(log) == 3")
            assert sorted(each[1] for each in ours.log) == [100, 101, 103]
            assert sorted(each[2] for each in await peer.run("log")) == [100, 101, 102]


async def test_scopes(rabbitmq: Broker) -> None:
    """Topics of two exchanges are two (O-03); a target that names one is served there by either side."""
    async with both(rabbitmq) as (bus, peer):
        ours = Endpoint("ours")
        async with bus.rpc.serve(Target("calc", exchange="nova"), ours, server="one"):
            assert await peer.run("client('calc', exchange='nova').call({}, 'add', a=1, b=2)") == 3
            with pytest.raises(NoRoute):
                await bus.rpc.call("calc", "add", {"a": 1, "b": 2}, timeout=20)


async def test_notifications(rabbitmq: Broker) -> None:
    """Notifications of each reach the other, by topic and priority; a pool of both shares a copy (O-14 to O-18)."""
    heard: list[Notification] = []

    class Listener:
        async def info(self, notification: Notification) -> None:
            heard.append(notification)

        async def error(self, notification: Notification) -> None:
            heard.append(notification)

    begin = """
transport = om.get_notification_transport(cfg.CONF, url=url)
notifiers = [om.Notifier(transport, "compute.one", driver=each, topics=["audit"]) for each in ("messagingv2", "messaging")]
got = []
class Listener:
    def __init__(self, name): self.name = name
    def info(self, context, publisher, event, payload, metadata): got.append([self.name, publisher, event, payload])
    def error(self, context, publisher, event, payload, metadata): got.append([self.name, publisher, event, payload])
def listen(name, pool=None):
    made = om.get_notification_listener(transport, [om.Target(topic="audit")], [Listener(name)], pool=pool)
    made.start()
    return made
"""
    async with both(rabbitmq) as (bus, peer):
        await peer.run(begin)
        # Before anybody listens: its publisher has declared the queue.
        await peer.run("notifiers[0].info({}, 'instance.started', {'id': 1}); notifiers[1].error({}, 'failed', 'x')")
        async with bus.notifications.listen(Listener(), topics=["audit"]):
            await until(lambda: len(heard) == 2)
        told = {(each.priority, each.publisher, each.event, str(each.payload)) for each in heard}
        assert told == {
            ("info", "compute.one", "instance.started", "{'id': 1}"),
            ("error", "compute.one", "failed", "x"),
        }

        await peer.run("listeners = [listen('all')]")
        notifier = bus.notifier("compute.two", topics=["audit"])
        await notifier.info("instance.started", {"id": 2})
        await peer.until("got")
        assert await peer.run("got") == [["all", "compute.two", "instance.started", {"id": 2}]]

        heard.clear()
        await peer.run("got.clear(); listeners.append(listen('pool', pool='billing'))")
        async with bus.notifications.listen(Listener(), topics=["audit"], pool="billing"):
            for number in range(8):
                await notifier.info("counted", number)
                await notifier.error("counted", number)
            await peer.until("sum(each[0] == 'all' for each in got) == 16")
            theirs = [each[3] for each in await peer.run("got") if each[0] == "pool"]
            await until(lambda: len(heard) + len(theirs) == 16)
        assert sorted([*theirs, *(each.payload for each in heard)]) == sorted([*range(8)] * 2)
        assert theirs
        assert {each.priority for each in heard} <= {"info", "error"}


async def test_after_a_lost_connection(rabbitmq: Broker) -> None:
    """After all connections were cut, our server answers their calls, and their server ours."""
    async with both(rabbitmq) as (bus, peer):
        await peer.run("server = serve('theirs', 'one')")
        async with bus.rpc.serve("ours", Endpoint("ours"), server="one"):
            assert await bus.rpc.call("theirs", "same", {"value": 1}, timeout=20) == 1
            rabbitmq.close_connections()
            await healthy(bus)
            assert await peer.run("client('ours').call({}, 'same', value=2)") == 2

            async def answered() -> bool:
                try:
                    return bool(await bus.rpc.call("theirs", "same", {"value": 3}, timeout=1) == 3)
                except CallTimeout:
                    return False  # its connections are made again

            async with asyncio.timeout(30):
                while not await answered():
                    pass
