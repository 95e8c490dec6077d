"""oslo.messaging on a bus: its own functional tests, and what the driver adds to them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import oslo_messaging
import pytest
from oslo_config import cfg

import redpoll
import redpoll.blocking
from redpoll.bus.rpc import Target
from redpoll.errors import RemoteError
from tests.ports import free_port
from tests.rabbitmq import Broker

pytestmark = [
    pytest.mark.interop,
    # The first use of options registers them for the process.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

ROOT = Path(__file__).parent.parent.parent
CALLS = [
    "bad_endpoint",
    "different_exchanges",
    "endpoint_version_namespace",
    "exception",
    "mandatory_call",
    "monitor_long_call",
    "server_in_group",
    "specific_server",
    "timeout",
    "timeout_with_concurrently_queues",
]
SUITE = {
    **{name: (f"test_functional.CallTestCase.test_{name}",) for name in CALLS},
    "cast": ("test_functional.CastTestCase",),
    "notify": ("test_functional.NotifyTestCase",),
    "metrics": ("test_functional.MetricsTestCase",),
    "logger": ("notify.test_logger",),
}
SMOKE = (
    "test_functional.CallTestCase.test_exception",
    "test_functional.CallTestCase.test_mandatory_call",
    "test_functional.CastTestCase.test_fanout",
    "test_functional.NotifyTestCase.test_simple",
)
#: Seconds that a test waits for something at most.
PATIENCE = 30.0


def run_theirs(url: str, *tests: str) -> None:
    """Run functional tests of oslo.messaging on a URL; two run only where that of calls says "rabbit"."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    urls = {"RPC_TRANSPORT_URL": f"rabbit:{url.partition(':')[2]}", "NOTIFY_TRANSPORT_URL": url}
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.compat.oslo_suite", *tests],
        cwd=ROOT,
        env={**os.environ, **urls, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-20_000:]


def test_smoke_of_their_functional_tests(hub_url: str) -> None:
    """Four of oslo.messaging's own functional tests pass on a hub: an error, no route, a fanout, a notification."""
    run_theirs(hub_url, *SMOKE)


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", SUITE)
def test_their_functional_tests_on_a_hub(part: str, hub_url: str) -> None:
    """All of oslo.messaging's functional tests that do not need RabbitMQ itself pass on a hub."""
    run_theirs(hub_url, *SUITE[part])


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", SUITE)
def test_their_functional_tests_on_rabbitmq(part: str, rabbitmq: Broker) -> None:
    """They pass on RabbitMQ too, by redpoll's engine."""
    run_theirs(f"redpoll+{rabbitmq.url}", *SUITE[part])


class Refusal(Exception):  # noqa: N818  # a name of its own
    """An exception that is made from keywords."""

    def __init__(self, message: str | None = None, **kwargs: Any) -> None:
        super().__init__(message or f"refused: {kwargs['why']}")
        self.kwargs = kwargs


class Endpoint:
    """The servers of these tests."""

    def __init__(self) -> None:
        self.begun = SimpleQueue[str]()
        self.end = threading.Event()

    def add(self, ctxt: dict[str, Any], a: int, b: int) -> list[Any]:
        """Add, and return the context too."""
        return [a + b, ctxt]

    def refuse(self, ctxt: dict[str, Any]) -> None:
        """Raise."""
        raise Refusal(why="full")

    def unwritable(self, ctxt: dict[str, Any]) -> object:
        """Return what has no JSON."""
        circle: list[Any] = []
        circle.append(circle)
        return circle

    def wait(self, ctxt: dict[str, Any]) -> None:
        """Begin, and wait."""
        self.begun.put("wait")
        self.end.wait(PATIENCE)


class Programs:
    """Transports of oslo.messaging on one engine in memory, and servers, which a test may leave open."""

    def __init__(self, name: str) -> None:
        self.url = f"memory://{name}"
        self._ends: list[Callable[[], object]] = []

    def transport(self, **options: Any) -> Any:
        """Return a transport."""
        made = oslo_messaging.get_rpc_transport(cfg.CONF, url=f"redpoll+{self.url}", **options)
        self._ends.append(made.cleanup)
        return made

    def serve(self, topic: str, endpoint: object, transport: Any = None, server: str = "one") -> Any:
        """Start a server."""
        target = oslo_messaging.Target(topic=topic, server=server)
        made = oslo_messaging.get_rpc_server(transport or self.transport(), target, [endpoint], executor="threading")
        made.start()
        self._ends += [made.wait, made.stop]
        return made

    def client(self, topic: str, timeout: float = PATIENCE, transport: Any = None, **options: Any) -> Any:
        """Return a client."""
        target = oslo_messaging.Target(topic=topic)
        return oslo_messaging.get_rpc_client(transport or self.transport(), target, timeout=timeout, **options)

    def end(self) -> None:
        """Stop all."""
        for end in reversed(self._ends):
            end()


@pytest.fixture
def programs(request: pytest.FixtureRequest) -> Iterator[Programs]:
    """Where the programs of a test are."""
    cfg.CONF([], project="test", default_config_files=[])
    made = Programs(request.node.name)
    yield made
    made.end()


def test_serves_programs_with_redpoll(programs: Programs) -> None:
    """A client with redpoll calls a server with oslo.messaging, and reads its errors."""
    programs.serve("sums", Endpoint())
    with redpoll.blocking.connect(programs.url) as bus:
        there = Target("sums", exchange="openstack")
        assert bus.rpc.call(there, "add", {"a": 1, "b": 2}, timeout=PATIENCE) == [3, {}]
        with pytest.raises(RemoteError, match="refused: full"):
            bus.rpc.call(there, "refuse", timeout=PATIENCE)


def test_calls_programs_with_redpoll(programs: Programs) -> None:
    """A client with oslo.messaging calls a server with redpoll, whose handler has its context, and raises its errors."""

    class Sums:
        def add(self, a: int, b: int) -> int:
            if b < 0:
                raise ValueError("below zero")
            return a + b + int(redpoll.bus.current_context().headers["more"])

    with (
        redpoll.blocking.connect(programs.url) as bus,
        bus.rpc.serve(Target("sums", exchange="openstack"), Sums()),
    ):
        client = programs.client("sums")
        assert client.call({"more": 4}, "add", a=1, b=2) == 7
        with pytest.raises(ValueError, match="below zero"):
            client.call({"more": 4}, "add", a=1, b=-2)
        with pytest.raises(oslo_messaging.RemoteError):
            client.call({}, "nothing")


def test_exceptions_of_allowed_modules(programs: Programs) -> None:
    """An exception of an allowed module is rebuilt from its keywords; without that it is a RemoteError."""
    programs.serve("sums", Endpoint())
    with pytest.raises(Refusal, match="refused: full") as raised:
        programs.client("sums", transport=programs.transport(allowed_remote_exmods=[__name__])).call({}, "refuse")
    assert raised.value.kwargs == {"why": "full"}
    with pytest.raises(oslo_messaging.RemoteError) as remote:
        programs.client("sums").call({}, "refuse")
    assert remote.value.exc_type == "Refusal"


def test_result_that_cannot_be_written(programs: Programs) -> None:
    """A caller hears that a result has no JSON, and does not wait for its timeout."""
    programs.serve("sums", Endpoint())
    with pytest.raises(oslo_messaging.RemoteError) as remote:
        programs.client("sums").call({}, "unwritable")
    assert remote.value.exc_type == "EncodeError"


def test_lost_server(programs: Programs) -> None:
    """Callers of a server that is lost hear of it at once: the timeout of the call is no limit of this test."""
    endpoint, transport = Endpoint(), programs.transport()
    programs.serve("sums", endpoint, transport)
    client = programs.client("sums", timeout=3600)
    errors = SimpleQueue[Exception]()

    def call() -> None:
        try:
            client.call({}, "wait")
        except oslo_messaging.MessagingTimeout as error:
            errors.put(error)

    caller = threading.Thread(target=call)
    caller.start()
    endpoint.begun.get(timeout=PATIENCE)
    transport.cleanup()
    errors.get(timeout=PATIENCE)
    endpoint.end.set()
    caller.join()


def test_names_that_a_bus_does_not_have(programs: Programs) -> None:
    """Topics and servers may have any characters, and two that differ do not mix."""
    for topic, server in (("a:b", "[::1]:80"), ("a%3Ab", "/x"), ("*", "@é.@#")):
        endpoint = Endpoint()
        programs.serve(topic, endpoint, server=server)
        client = programs.client(topic).prepare(server=server)
        assert client.call({"at": topic}, "add", a=1, b=2) == [3, {"at": topic}]


class Noted:
    """A listener that gives back what it sees for the first time."""

    def __init__(self) -> None:
        self.seen = SimpleQueue[tuple[Any, ...]]()
        self.first = True

    def info(self, ctxt: Any, publisher: str, event: str, payload: Any, metadata: dict[str, str]) -> Any:
        """Note it."""
        self.seen.put((ctxt, publisher, event, payload, metadata))
        first, self.first = self.first, False
        return oslo_messaging.NotificationResult.REQUEUE if first else None


def notifications(programs: Programs, **options: Any) -> Any:
    """Return a transport for notifications."""
    return oslo_messaging.get_notification_transport(cfg.CONF, url=f"redpoll+{programs.url}", **options)


def test_notification_that_is_given_back(programs: Programs) -> None:
    """It comes again, the same; and it was kept for listeners that came after it was sent."""
    transport, noted = notifications(programs), Noted()
    notifier = oslo_messaging.Notifier(transport, "host-1", driver="messagingv2", topics=["events"])
    notifier.info({}, "started", {"id": 7})
    listener = oslo_messaging.get_notification_listener(
        transport, [oslo_messaging.Target(topic="events")], [noted], executor="threading", allow_requeue=True
    )
    listener.start()
    first, second = (noted.seen.get(timeout=PATIENCE) for _ in range(2))
    assert first == second
    assert first[1:4] == ("host-1", "started", {"id": 7})
    listener.stop()
    listener.wait()
    transport.cleanup()


def test_notification_of_no_time(programs: Programs) -> None:
    """A notification whose time is none that a clock shows becomes a dead letter; the next one is heard."""
    transport, noted = notifications(programs), Noted()
    notifier = oslo_messaging.Notifier(transport, "host-1", driver="messagingv2", topics=["events"])
    listener = oslo_messaging.get_notification_listener(
        transport, [oslo_messaging.Target(topic="events")], [noted], executor="threading"
    )
    listener.start()
    name = "notifications:openstack/events.info"

    async def send() -> None:
        async with redpoll.connect(programs.url) as bus:
            for when in (1e300, float("nan")):
                meta = {"id": "1", "publisher": "host-1", "event": "started", "priority": "info", "time": when}
                await bus.engine.publish(bus.payloads.pack({}, meta), queue=name)

    redpoll.run(send())
    notifier.info({}, "ended", {"id": 7})
    assert noted.seen.get(timeout=PATIENCE)[2] == "ended"
    with redpoll.blocking.connect(programs.url) as bus:
        assert bus.queues.inspect(name).dead == 2
    listener.stop()
    listener.wait()
    transport.cleanup()


def test_a_transport_that_was_cleaned_up_stays_so(programs: Programs) -> None:
    """A server that answers, or stops, after its transport was cleaned up does not connect it again."""
    transport = programs.transport()
    driver = transport._driver
    listener = driver.listen(oslo_messaging.Target(topic="sums", server="one"), 1, None)._poll_style_listener
    with redpoll.blocking.connect(programs.url) as bus:
        bus.rpc.cast(Target("sums", exchange="openstack"), "add", {"a": 1})
        (incoming,) = listener.poll(timeout=PATIENCE)
        transport.cleanup()
        incoming.reply(1)
        incoming.heartbeat()
        listener.stop()
    assert not driver._bus.entered


def test_notifications_of_both_kinds_of_programs(programs: Programs) -> None:
    """A listener with redpoll hears a notifier with oslo.messaging, and the other way round."""
    transport, noted = notifications(programs), Noted()
    noted.first = False
    notifier = oslo_messaging.Notifier(transport, "theirs", driver="messagingv2", topics=["events"])
    heard = SimpleQueue[Any]()
    listener = oslo_messaging.get_notification_listener(
        transport, [oslo_messaging.Target(topic="events")], [noted], executor="threading"
    )
    with redpoll.blocking.connect(programs.url) as bus:
        with bus.notifications.listen(heard.put, topics=["openstack/events"]):
            notifier.info({}, "started", [1])
            found = heard.get(timeout=PATIENCE)
            assert (found.publisher, found.event, found.payload) == ("theirs", "started", [1])
        listener.start()
        bus.notifier("ours", topics=["openstack/events"]).info("stopped", [2])
        _, publisher, event, payload, metadata = noted.seen.get(timeout=PATIENCE)
        assert (publisher, event, payload) == ("ours", "stopped", [2])
        assert len(metadata["message_id"]) == 32
    listener.stop()
    listener.wait()
    transport.cleanup()


def test_limited_tries_without_a_hub(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a number of tries a cast fails where no hub is; a call has its timeout."""
    monkeypatch.setattr("redpoll.compat.oslo._TRY", 0.1)
    programs.url = f"//127.0.0.1:{free_port()}"
    transport = oslo_messaging.get_rpc_transport(cfg.CONF, url=f"redpoll:{programs.url}")
    client = programs.client("sums", transport=transport, retry=1)
    with pytest.raises(oslo_messaging.MessageDeliveryFailure):
        client.cast({}, "add", a=1, b=2)
    with pytest.raises(oslo_messaging.MessagingException):
        client.prepare(timeout=0.1, retry=None).call({}, "add", a=1, b=2)
    transport.cleanup()


FORKED = """
import os, sys
import oslo_messaging
from oslo_config import cfg

cfg.CONF([], project="test", default_config_files=[])
transport = oslo_messaging.get_rpc_transport(cfg.CONF, url=sys.argv[1])


class Endpoint:
    def pid(self, ctxt):
        return os.getpid()


server = oslo_messaging.get_rpc_server(
    transport, oslo_messaging.Target(topic="pids", server="one"), [Endpoint()], executor="threading"
)
server.start()
client = oslo_messaging.get_rpc_client(transport, oslo_messaging.Target(topic="pids"), timeout=30)
assert client.call({}, "pid") == os.getpid()
child = os.fork()
if not child:
    os._exit(client.call({}, "pid") != os.getppid())
assert os.waitpid(child, 0)[1] == 0
assert client.call({}, "pid") == os.getpid()
server.stop()
server.wait()
transport.cleanup()
"""


def test_forked_process(hub_url: str) -> None:
    """A forked process calls by the transport that it inherited, and leaves its parent's alone."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED, hub_url], check=True, cwd=ROOT)
