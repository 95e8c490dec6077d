"""Calls on every engine: kiwiPy's and oslo.messaging's behaviours by their ids, and ours."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from redpoll.bus import Bus, current_context, use_headers
from redpoll.bus.rpc import (
    AccessPolicy,
    ExplicitAccessPolicy,
    LegacyAccessPolicy,
    RpcOptions,
    Target,
    expected_exceptions,
    expose,
)
from redpoll.bus.rpc.target import queue_name
from redpoll.errors import (
    BadPayload,
    CallTimeout,
    ConfigError,
    NoRoute,
    PeerLost,
    RemoteError,
    SpecConflict,
    UsageError,
)
from redpoll.testing.conformance.faces import Signal
from redpoll.testing.conformance.frame import NotCovered, Place, behaviour, fails

__all__: list[str] = []


class _Server:
    """An endpoint that remembers what it was called with."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.seen: list[Any] = []
        self.begun = Signal()
        self.go_on = Signal()
        self.cancelled = False

    async def append(self, value: Any) -> str:
        self.seen.append(value)
        return self.name

    async def echo(self, value: Any) -> Any:
        return value

    async def add(self, a: int, b: int) -> int:
        return a + b

    async def subtract(self, a: int, b: int) -> int:
        if b > a:
            raise ValueError("less than nothing")
        return a - b

    async def wait(self) -> str:
        self.begun.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return "went on"


async def _group(place: Place, bus: Bus, target: Target, names: str = "123") -> list[_Server]:
    """Three servers of a target, each under a name."""
    servers = [_Server(f"{place.prefix}-{name}") for name in names]
    for each in servers:
        await bus.rpc.serve(target, each, server=each.name).start()
    return servers


# -- kiwiPy's


@behaviour("K-03")
async def identifier(place: Place) -> None:
    """A function that is served under a name receives the message, and the caller receives its result."""
    receiver, sender = await place.open(), await place.open()
    seen: list[Any] = []

    async def handler(message: Any) -> str:
        seen.append(message)
        return "done"

    async with receiver.rpc.serve(place.name("worker"), handler):
        assert await sender.rpc.call(place.name("worker"), None, ["a", 1]) == "done"
    assert seen == [["a", 1]]


@behaviour("K-04")
async def served_again(place: Place) -> None:
    """A server that ended is not there; the same name serves again."""
    receiver, sender = await place.open(), await place.open()
    topic = place.name("a")
    server = receiver.rpc.serve(topic, _Server("it"))
    for _ in range(2):
        async with server:
            assert await sender.rpc.call(topic, "append", {"value": 1}) == "it"
        await fails(sender.rpc.call(topic, "append", {"value": 1}), NoRoute)


@behaviour("K-05")
async def returned_futures(place: Place) -> None:
    """The answer is the result of a future that the handler returned, also if that is another future."""
    receiver, sender = await place.open(), await place.open()
    inner: concurrent.futures.Future[Any] = concurrent.futures.Future()
    outer: concurrent.futures.Future[Any] = concurrent.futures.Future()
    outer.set_result(inner)
    inner.set_result("value")

    async def handler(_: Any) -> Any:
        return outer

    async with receiver.rpc.serve(place.name("a"), handler):
        assert await sender.rpc.call(place.name("a")) == "value"


@behaviour("K-06")
async def raises(place: Place) -> None:
    """An exception of a handler reaches the caller as a RemoteError with class, text and traceback."""
    receiver, sender = await place.open(), await place.open()
    seen: list[Any] = []

    class OwnError(Exception):
        """A method that is not allowed."""

    async def handler(message: Any) -> None:
        seen.append(message)
        raise OwnError("no")

    async with receiver.rpc.serve(place.name("a"), handler):
        error = await fails(sender.rpc.call(place.name("a"), None, 7), RemoteError)
    assert isinstance(error, RemoteError)
    assert (error.kind.rpartition(".")[2], error.text, seen) == ("OwnError", "no", [7])
    assert "in handler" in (error.traceback or "")


@behaviour("K-07")
async def unknown(place: Place) -> None:
    """A call of a name without a server is no route, at once; so are a cast, and a stream."""
    bus = await place.open()
    topic = place.name("nobody")
    await fails(bus.rpc.call(topic, timeout=60), NoRoute)
    await fails(bus.rpc.cast(topic, timeout=60), NoRoute)
    await fails(anext(bus.rpc.stream(topic)), NoRoute)


@behaviour("K-22")
async def sent_before_closing(place: Place) -> None:
    """A cast is delivered though the bus closes right after it."""
    receiver, sender = await place.open(), await place.open()
    server = _Server()
    async with receiver.rpc.serve(place.name("a"), server):
        await sender.rpc.cast(place.name("a"), "append", {"value": 1})
        await sender.close()
        await place.until(lambda: server.seen == [1])


@behaviour("KX-06")
async def served_twice(place: Place) -> None:
    """An identifier that is served twice is shared, and no call is done twice; or it is refused, where one has it alone."""
    one, two, sender = [await place.open() for _ in range(3)]
    topic = place.name("a")
    first, second = _Server("1"), _Server("2")
    async with one.rpc.serve(topic, first), two.rpc.serve(topic, second):
        for number in range(10):
            await sender.rpc.call(topic, "append", {"value": number})
        assert sorted(first.seen + second.seen) == list(range(10))
        await fails(two.rpc.serve(topic, _Server(), exclusive=True).start(), SpecConflict)
    async with one.rpc.serve(topic, first, exclusive=True):
        await fails(two.rpc.serve(topic, second).start(), SpecConflict)


# -- oslo.messaging's


@behaviour("O-01")
async def one_server(place: Place) -> None:
    """A call to a server by its name reaches that server, and changes nothing in others of its topic."""
    receiver, sender = await place.open(), await place.open()
    topic = place.name("a")
    one, two, three = await _group(place, receiver, Target(topic))
    client = sender.rpc.client(topic, server=two.name)
    assert [await client.append(value=number) for number in range(3)] == [two.name] * 3
    assert (one.seen, two.seen, three.seen) == ([], [0, 1, 2], [])
    await fails(sender.rpc.call(topic, "append", {"value": 1}, server=place.name("none")), NoRoute)


@behaviour("O-02")
async def group(place: Place) -> None:
    """Fourteen calls of a topic: each server has at least one, and each call is done by one, in order."""
    receiver, sender = await place.open(), await place.open()
    topic = place.name("a")
    servers = await _group(place, receiver, Target(topic))
    for number in range(14):
        await sender.rpc.call(topic, "append", {"value": number})
    assert all(each.seen and each.seen == sorted(each.seen) for each in servers)
    assert sorted(number for each in servers for number in each.seen) == list(range(14))


@behaviour("O-03")
async def groups(place: Place) -> None:
    """Calls of one topic do not leak to another one, nor to the same topic of another exchange."""
    receiver, sender = await place.open(), await place.open()
    a, b = place.name("a"), place.name("b")
    ones, twos = [await _group(place, receiver, Target(topic)) for topic in (a, b)]
    others = await _group(place, receiver, Target(a, exchange="x"))
    for number in range(6):
        await sender.rpc.call(a, "append", {"value": number})
        await sender.rpc.call(b, "append", {"value": number}, server=twos[0].name)
    assert sorted(number for each in ones for number in each.seen) == list(range(6))
    assert [each.seen for each in twos] == [list(range(6)), [], []]
    assert not any(each.seen for each in others)
    await sender.rpc.call(Target(a, exchange="x"), "append", {"value": "x"})
    assert sum(len(each.seen) for each in others) == 1


@behaviour("O-04")
async def no_answer(place: Place) -> None:
    """A call that waits for a server fails at its timeout, and not before; that is a TimeoutError."""
    bus = await place.open()
    call = place.begin(bus.rpc.call, place.name("a"), "x", timeout=0.5, mandatory=False)
    await place.calm()
    assert not call.done()
    await place.wait(0.5)
    error = await fails(call, CallTimeout)
    assert isinstance(error, TimeoutError)


@behaviour("O-05")
async def exceptions_of_python(place: Place) -> None:
    """An exception of Python is raised as itself."""
    receiver, sender = await place.open(), await place.open()
    async with receiver.rpc.serve(place.name("a"), _Server()):
        client = sender.rpc.client(place.name("a"))
        assert await client.subtract(a=3, b=2) == 1
        error = await fails(client.subtract(a=2, b=3), ValueError)
    assert str(error) == "less than nothing"


@behaviour("O-06")
async def long_call(place: Place) -> None:
    """While one call waits until its timeout, others of the same client are answered."""
    receiver, sender = await place.open(), await place.open()
    server = _Server("s")
    async with receiver.rpc.serve(place.name("a"), server):
        client = sender.rpc.client(place.name("a"), timeout=1)
        long = place.begin(client.wait)
        await server.begun.wait()
        for number in range(10):
            assert await client.append(value=number) == "s"
        await place.wait(1)
        await fails(long, TimeoutError)
        await place.until(lambda: server.cancelled)


@behaviour("O-07")
async def mandatory(place: Place) -> None:
    """Without a server a mandatory call fails at once though it has an hour; another one waits for its timeout."""
    bus = await place.open()
    await fails(bus.rpc.call(place.name("a"), "x", timeout=3_600), NoRoute)
    call = place.begin(bus.rpc.call, place.name("a"), "x", timeout=0.5, mandatory=False)
    await place.wait(0.5)
    await fails(call, CallTimeout)


@behaviour("O-08", "progress")
async def monitored(place: Place) -> None:
    """A handler that takes long is waited for while its server gives signs of life."""
    receiver, sender = await place.open(), await place.open()
    server = _Server()
    async with receiver.rpc.serve(place.name("a"), server):
        client = sender.rpc.client(place.name("a"))
        short = place.begin(client.prepare(timeout=0.5).wait)
        long = place.begin(client.prepare(timeout=3_600, monitor=1.5).wait)
        await place.wait(2.5)
        await fails(short, CallTimeout)
        assert not long.done()
        server.go_on.set()
        assert await long == "went on"


@behaviour("O-09")
async def namespaces_and_versions(place: Place) -> None:
    """A call reaches an endpoint of its namespace and a version that fits, and fails where there is none."""
    receiver, sender = await place.open(), await place.open()
    server = _Server()
    server.target = Target(namespace="Name1", version="7.5")  # type: ignore[attr-defined]
    async with receiver.rpc.serve(place.name("a"), server):
        client = sender.rpc.client(place.name("a"), namespace="Name1", version="7.5")
        assert await client.add(a=1, b=2) == 3
        assert await client.prepare(version="7.0").add(a=1, b=2) == 3
        for wrong in ({"version": "7.6"}, {"version": "8.0"}, {"namespace": "Name2"}, {"namespace": None}):
            error = await fails(client.prepare(**wrong).add(a=1, b=2), RemoteError)
            assert isinstance(error, RemoteError)
            assert error.kind == "UnsupportedVersion"


@behaviour("O-10")
async def wrong_target(place: Place) -> None:
    """An endpoint whose target is none is refused where it is given."""
    bus = await place.open()
    server = _Server()
    server.target = "a"  # type: ignore[attr-defined]
    try:
        bus.rpc.serve(place.name("a"), server)
    except ConfigError:
        return
    raise AssertionError("it was not refused")


@behaviour("O-11")
async def cast_to_one(place: Place) -> None:
    """Casts to a server by its name have their effects there only."""
    receiver, sender = await place.open(), await place.open()
    topic = place.name("a")
    one, two, three = await _group(place, receiver, Target(topic))
    client = sender.rpc.client(topic, server=one.name)
    for number in range(2):
        await client.cast("append", value=number)
    await place.until(lambda: len(one.seen) == 2)
    await place.calm()
    assert (sorted(one.seen), two.seen, three.seen) == ([0, 1], [], [])


@behaviour("O-12")
async def cast_to_group(place: Place) -> None:
    """Twenty casts to a topic are shared: each server has 1 to 19, and all have 20 together."""
    receiver, sender = await place.open(), await place.open()
    topic = place.name("a")
    servers = await _group(place, receiver, Target(topic))
    for number in range(20):
        await sender.rpc.cast(topic, "append", {"value": number})
    await place.until(lambda: sum(len(each.seen) for each in servers) == 20)
    await place.calm()
    assert sorted(number for each in servers for number in each.seen) == list(range(20))
    assert all(1 <= len(each.seen) <= 19 for each in servers)


@behaviour("O-13")
async def fanout(place: Place) -> None:
    """Every server of a topic sees each message to all of them once; those of another exchange see none."""
    receiver, sender = await place.open(), await place.open()
    topic = place.name("a")
    servers = await _group(place, receiver, Target(topic))
    others = await _group(place, receiver, Target(topic, exchange="x"))
    for number in range(4):
        await sender.rpc.fanout(topic, "append", {"value": number})
    await sender.rpc.client(topic, fanout=True).cast("append", value=4)
    await place.until(lambda: all(len(each.seen) == 5 for each in servers))
    await place.calm()
    assert [sorted(each.seen) for each in servers] == [list(range(5))] * 3
    assert not any(each.seen for each in others)
    await sender.rpc.fanout(place.name("nobody"), "append", {"value": 0})


@behaviour("O-22")
async def metrics(place: Place) -> None:
    """A call counts once as begun and as ended, with its time."""
    bus = await place.open()
    topic = place.name("a")
    async with bus.rpc.serve(topic, _Server()):
        await bus.rpc.call(topic, "echo", {"value": 1})
        await fails(bus.rpc.call(topic, "missing"), RemoteError)
    stats = bus.rpc.stats[topic, "echo"]
    assert (stats.calls, stats.ended, stats.failed) == (1, 1, 0)
    assert stats.seconds > 0
    assert bus.rpc.stats[topic, "missing"].failed == 1


# -- the semantics of oslo.messaging's unit tests, and ours


@behaviour("O-23")
async def failover(_: Place) -> None:
    """A call outlives the death of the server of a cluster that carries it, and so do later ones, server by server."""
    raise NotCovered("a cluster is the server's, not the engine's")


@behaviour("R-01")
async def falsy_values(place: Place) -> None:
    """None, 0, False, and empty values, are answers like any other, and arguments too."""
    receiver, sender = await place.open(), await place.open()
    async with receiver.rpc.serve(place.name("a"), _Server()):
        values: list[Any] = [None, 0, False, "", [], {}, b""]
        for value in values:
            found = await sender.rpc.call(place.name("a"), "echo", {"value": value})
            assert (found, type(found)) == (value, type(value))


@behaviour("R-02")
async def timeouts(place: Place) -> None:
    """The timeout of a call counts before that of its client, and that before the bus's; 0 is one that is over."""
    receiver = await place.open()
    sender = await place.open(rpc=RpcOptions(timeout=0.2))
    server = _Server()
    async with receiver.rpc.serve(place.name("a"), server):
        patient = sender.rpc.client(place.name("a"), timeout=3_600)
        calls = [
            place.begin(sender.rpc.call, place.name("a"), "wait"),
            place.begin(patient.prepare(timeout=0.2).wait),
            place.begin(patient.wait),
            place.begin(sender.rpc.call, place.name("a"), "wait", timeout=None),
        ]
        await place.wait(0.4)
        await place.until(lambda: [each.done() for each in calls] == [True, True, False, False])
        for each in calls[:2]:
            await fails(each, CallTimeout)
        for each in calls[2:]:
            each.cancel()
        await asyncio.wait(calls[2:])
        server.begun.clear()
        over = place.begin(patient.prepare(timeout=0).wait)
        await place.wait(0.1)
        await fails(over, TimeoutError)
        await place.calm()
        assert not server.begun.is_set()


@behaviour("R-03")
async def answers_of_all(place: Place) -> None:
    """All servers cannot be called, however that is said; they are cast to."""
    bus = await place.open()
    topic = place.name("a")
    makes = (
        lambda: bus.rpc.call(Target(topic, fanout=True), "x"),
        lambda: bus.rpc.client(Target(topic, fanout=True)).call("x"),
        lambda: bus.rpc.client(topic).prepare(fanout=True).call("x"),
        lambda: bus.rpc.client(Target(topic, fanout=True)).prepare(fanout=True).call("x"),
    )
    for make in makes:
        await _refused(make, UsageError)


@behaviour("R-04")
async def version_caps(place: Place) -> None:
    """A version above the cap of its client is not sent; one that is no version is refused."""
    bus = await place.open()
    topic = place.name("a")
    # The cap, the version, whether it is sent.
    cases = (
        (None, None, True),
        (None, "9.9", True),
        ("1.0", None, False),
        ("1.1", "1.0", True),
        ("1.1", "1.1", True),
        ("1.1", "1.2", False),
        ("1.1", "2.0", False),
        ("2.0", "1.0", False),
        ("1.1.1", "1.1.2", False),
        ("1.1.2", "1.1.1", True),
    )
    for cap, version, allowed in cases:
        client = bus.rpc.client(topic, version_cap=cap, version=version)
        assert client.can_send_version() is allowed, (cap, version)
        if not allowed:
            await _refused(partial(client.call, "x"), UsageError)
    assert bus.rpc.client(topic, version_cap="1.0").prepare(version_cap=None, version="3.0").can_send_version()
    for version in ("5", "5.a", "5.5.a"):
        await _refused(partial(bus.rpc.client(topic).prepare, version=version), ConfigError)


@behaviour("R-05")
async def endpoints_in_order(place: Place) -> None:
    """Endpoints are tried in order; an endpoint accepts its old namespaces as well."""
    receiver, sender = await place.open(), await place.open()
    topic = place.name("a")
    plain, other, old = _Server("plain"), _Server("other"), _Server("old")
    other.target = Target(namespace="n")  # type: ignore[attr-defined]
    old.target = Target(namespace="n", version="2.3", legacy_namespaces=(None, "m"))  # type: ignore[attr-defined]
    async with receiver.rpc.serve(topic, plain, other, old):
        client = sender.rpc.client(topic)
        cases: tuple[tuple[dict[str, Any], str], ...] = (
            ({}, "plain"),
            ({"namespace": "n"}, "other"),
            ({"namespace": "m", "version": "2.1"}, "old"),
            ({"version": "2.3"}, "old"),
            ({"namespace": "n", "version": "2.0"}, "old"),
        )
        for changes, name in cases:
            assert await client.prepare(**changes).append(value=1) == name, changes
        missing = await fails(client.nothing(), RemoteError)
        assert isinstance(missing, RemoteError)
        assert missing.kind == "NoSuchMethod"


class _Guarded:
    """An endpoint of which not all may be called."""

    async def plain(self) -> str:
        return "plain"

    @expose
    async def marked(self) -> str:
        return "marked"

    async def _hidden(self) -> str:
        return "hidden"


@behaviour("R-06")
async def policies(place: Place) -> None:
    """A method that the policy does not allow looks like one that is not there."""
    receiver, sender = await place.open(), await place.open()
    topic = place.name("a")
    cases = (
        (AccessPolicy(), {"plain", "marked"}),
        (ExplicitAccessPolicy(), {"marked"}),
        (LegacyAccessPolicy(), {"plain", "marked", "_hidden"}),
    )
    for policy, allowed in cases:
        async with receiver.rpc.serve(topic, _Guarded(), policy=policy):
            for name in ("plain", "marked", "_hidden"):
                if name in allowed:
                    assert await sender.rpc.call(topic, name) == name.strip("_")
                else:
                    error = await fails(sender.rpc.call(topic, name), RemoteError)
                    assert "NoSuchMethod" in str(error)


@behaviour("R-07")
async def ping(place: Place) -> None:
    """A server answers ping by itself, and by its endpoint where that has such a method."""
    receiver, sender = await place.open(), await place.open()

    class Own:
        async def ping(self) -> str:
            return "mine"

    async with receiver.rpc.serve(place.name("a"), _Server()), receiver.rpc.serve(place.name("b"), Own()):
        assert await sender.rpc.call(place.name("a"), "ping") == "pong"
        assert await sender.rpc.call(place.name("b"), "ping") == "mine"


@behaviour("R-08")
async def allowed_exceptions(place: Place) -> None:
    """An exception is raised as its class where that is allowed, expected ones without a traceback, others as RemoteError."""
    receiver = await place.open()
    trusting = await place.open(
        rpc=RpcOptions(allowed_exceptions=("redpoll.errors", concurrent.futures.InvalidStateError))
    )
    wary = await place.open()

    class Failing:
        async def route(self) -> None:
            raise NoRoute("far")

        async def state(self) -> None:
            raise concurrent.futures.InvalidStateError("done")

        @expected_exceptions(LookupError)
        async def miss(self) -> None:
            raise KeyError("k")

    async with receiver.rpc.serve(place.name("a"), Failing()):
        client = trusting.rpc.client(place.name("a"))
        assert "far" in str(await fails(client.route(), NoRoute))
        await fails(client.state(), concurrent.futures.InvalidStateError)
        error = await fails(wary.rpc.call(place.name("a"), "state"), RemoteError)
        assert type(error) is RemoteError
        error = await fails(client.miss(), KeyError)
        assert isinstance(error.__cause__, RemoteError)
        assert error.__cause__.traceback is None


@behaviour("R-09")
async def lifecycle(place: Place) -> None:
    """A server is started, stopped and waited for in any order, each step once; calls that have begun go on after it."""
    receiver, sender = await place.open(), await place.open()
    endpoint = _Server("s")
    server = receiver.rpc.serve(place.name("a"), endpoint)
    await server.wait()
    await server.stop()
    await asyncio.gather(place.begin(server.start), place.begin(server.start))
    client = sender.rpc.client(place.name("a"))
    call = place.begin(client.wait)
    await endpoint.begun.wait()
    await asyncio.gather(place.begin(server.stop), place.begin(server.stop))
    waiting = place.begin(server.wait)
    await place.calm()
    assert not waiting.done()
    endpoint.go_on.set()
    assert await call == "went on"
    await waiting
    await server.start()
    await server.reset()
    assert await client.append(value=1) == "s"
    await server.stop()
    await server.wait()


@behaviour("R-10", "progress")
async def streams(place: Place) -> None:
    """A generator's values come in order, no more ahead than the caller takes; leaving ends it."""
    receiver, sender = await place.open(), await place.open()
    made: list[int] = []
    ended: list[str] = []

    async def numbers(below: int) -> AsyncIterator[int]:
        try:
            for number in range(below):
                made.append(number)
                yield number
        finally:
            ended.append("ended")

    endpoint = type("Numbers", (), {"numbers": staticmethod(numbers)})()
    async with receiver.rpc.serve(place.name("a"), endpoint):
        client = sender.rpc.client(place.name("a"))
        assert [each async for each in client.stream("numbers", below=300)] == list(range(300))
        made.clear()
        async with client.stream("numbers", below=1_000_000) as stream:
            assert [await anext(stream) for _ in range(3)] == [0, 1, 2]
            await place.calm()
            assert len(made) < 200
        await place.until(lambda: ended == ["ended", "ended"])


@behaviour("R-11", "cancel")
async def left(place: Place) -> None:
    """A caller that is cancelled has its handler cancelled, and the calls for which that waits."""
    front, back, sender = [await place.open() for _ in range(3)]
    server = _Server()

    async def ask(_: Any) -> Any:
        return await place.begin(front.rpc.call, place.name("b"), "wait")

    async with front.rpc.serve(place.name("a"), ask), back.rpc.serve(place.name("b"), server):
        call = place.begin(sender.rpc.call, place.name("a"))
        await server.begun.wait()
        call.cancel()
        await asyncio.wait([call])
        await place.until(lambda: server.cancelled)


@behaviour("R-12")
async def context(place: Place) -> None:
    """Headers and the deadline of a call apply to the calls of its handler."""
    front, back, sender = [await place.open() for _ in range(3)]
    a, b = place.name("a"), place.name("b")
    seen: list[tuple[dict[str, Any], float | None]] = []

    async def note(_: Any) -> None:
        context = current_context()
        seen.append((dict(context.headers), context.left))

    async def ask(message: Any) -> None:
        await front.rpc.call(b, None, message, headers={"more": 1}, timeout=100)

    async with front.rpc.serve(a, ask), back.rpc.serve(b, note):
        with use_headers(user="ada"):
            await sender.rpc.call(a, timeout=5)
        await sender.rpc.call(b, timeout=None)
    (headers, seconds), outside = seen
    assert headers == {"user": "ada", "more": 1}
    assert seconds is not None
    assert seconds <= 5
    assert outside == ({}, None)


@behaviour("R-13")
async def waiting_for_a_server(place: Place) -> None:
    """A call waits for a server to appear where it is told to, no longer than that."""
    receiver, sender = await place.open(), await place.open()
    topic = place.name("a")
    early = place.begin(sender.rpc.call, topic, "append", {"value": 1}, wait=5)
    late = place.begin(sender.rpc.call, place.name("b"), "append", wait=0.5)
    await place.wait(0.3)
    async with receiver.rpc.serve(topic, _Server("here")):
        await place.wait(0.5)
        assert await early == "here"
    await fails(late, NoRoute)


@behaviour("R-14")
async def casts_expire(place: Place) -> None:
    """A cast that waits for a server is dropped after its timeout."""
    receiver, sender = await place.open(), await place.open()
    topic = place.name("a")
    server = _Server()
    await sender.rpc.cast(topic, "append", {"value": "late"}, mandatory=False, timeout=0.3)
    await sender.rpc.cast(topic, "append", {"value": "in time"}, mandatory=False, timeout=30)
    await place.wait(0.6)
    async with receiver.rpc.serve(topic, server):
        await place.until(lambda: server.seen)
        await place.calm()
    assert server.seen == ["in time"]


@behaviour("R-15")
async def typed(place: Place) -> None:
    """A class whose methods are served gives a client with the same methods, by position too."""
    receiver, sender = await place.open(), await place.open()
    async with receiver.rpc.serve(place.name("a"), _Server()):
        client = sender.rpc.client(place.name("a"), _Server)
        assert await client.add(1, b=2) == 3


@behaviour("R-16")
async def serializers(place: Place) -> None:
    """A receiver that lacks the sender's serializer says so, with both names, at either end."""
    one, two = await place.open(serializer="pickle"), await place.open()
    async with one.rpc.serve(place.name("one"), _Server()), two.rpc.serve(place.name("two"), _Server()):
        there = await fails(one.rpc.call(place.name("two"), "echo", {"value": 1}), RemoteError)
        here = await fails(two.rpc.call(place.name("one"), "echo", {"value": 1}), BadPayload)
    for error in (there, here):
        assert "'pickle'" in str(error)
        assert "msgpack" in str(error)


@behaviour("R-17")
async def server_killed(place: Place) -> None:
    """A call whose server dies says so, and no other server begins it; those that wait are done by another."""
    dead, alive, sender = [await place.open() for _ in range(3)]
    topic = place.name("a")
    broken, whole = _Server("broken"), _Server("whole")
    await dead.rpc.serve(topic, broken, concurrency=1).start()
    begun = place.begin(sender.rpc.call, topic, "wait")
    await broken.begun.wait()
    waits = place.begin(sender.rpc.call, topic, "append", {"value": 1})
    await place.calm()
    async with alive.rpc.serve(topic, whole):
        await place.kill(dead)
        await place.wait(2)
        await fails(begun, PeerLost)
        assert await waits == "whole"
    assert not whole.begun.is_set()


@behaviour("R-18")
async def server_lasts(place: Place) -> None:
    """A server goes on when a plain method exits the program, and when its queue is deleted."""
    receiver, sender = await place.open(), await place.open()
    topic = place.name("a")

    class Endpoint:
        def leave(self) -> None:
            raise SystemExit

        def stay(self) -> str:
            return "here"

    async with receiver.rpc.serve(topic, Endpoint()):
        await fails(sender.rpc.call(topic, "leave"), RuntimeError)
        assert await sender.rpc.call(topic, "stay") == "here"
        await sender.queues.delete(queue_name(Target(topic)))
        await place.wait(2)
        assert await sender.rpc.call(topic, "stay") == "here"


async def _refused(make: Any, error: type[Exception]) -> None:
    """Check that something is refused where it is asked for, or when it is awaited."""
    try:
        await make()
    except error:
        return
    raise AssertionError(f"it was not refused as {error.__name__}")
