"""Calls, for threads."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from redpoll.blocking import connect
from redpoll.bus import current_context, use_headers
from redpoll.bus.rpc import RpcOptions, Target
from redpoll.bus.threads import BlockingBus
from redpoll.errors import CallTimeout, Closed, NoRoute, UsageError
from tests.blocking.support import PATIENCE, in_thread, interrupting, until
from tests.bus.threads.support import opens


class Calculator:
    """What is called: in threads, on the loop, as a stream."""

    def __init__(self, bus: BlockingBus) -> None:
        self.bus = bus
        self.left = threading.Event()
        self.log: list[Any] = []

    def add(self, a: int, b: int) -> int:
        """In a thread."""
        return a + b

    async def multiply(self, a: int, b: int) -> int:
        """On the loop."""
        return a * b

    def again(self) -> Any:
        """Call back from a thread."""
        return self.bus.rpc.call("calculator", "who")

    def who(self) -> Any:
        """Say what travelled along, and what time there is."""
        context = current_context()
        return [context.headers.get("user"), context.left is not None]

    def note(self, text: str) -> None:
        """Take a cast."""
        self.log.append(text)

    async def hang(self) -> None:
        """Wait until the caller left."""
        try:
            await self.bus._home.handover.loop.create_future()
        finally:
            self.left.set()

    async def count(self, below: int) -> AsyncIterator[int]:
        """Stream."""
        try:
            for number in range(below):
                yield number
        finally:
            self.left.set()


class Interface:
    """The methods that a typed client has."""

    async def add(self, a: int, b: int) -> int:
        """As it is served."""
        raise NotImplementedError

    async def count(self, below: int) -> AsyncIterator[int]:
        """As it is served."""
        yield below


@pytest.fixture
def bus() -> Iterator[BlockingBus]:
    """A bus of its own."""
    with connect("memory://", rpc=RpcOptions(timeout=PATIENCE)) as opened:
        yield opened


@pytest.fixture
def calculator(bus: BlockingBus) -> Iterator[Calculator]:
    """Somebody who serves."""
    endpoint = Calculator(bus)
    with bus.rpc.serve("calculator", endpoint, server="one") as server:
        assert (server.target.server, server.active) == ("one", True)
        yield endpoint
    assert not server.active


def test_calls(bus: BlockingBus, calculator: Calculator) -> None:
    """Methods are called by name, by a client, by a typed client, or begun as futures."""
    assert bus.rpc.call("calculator", "add", {"a": 1, "b": 2}) == 3
    client = bus.rpc.client("calculator", timeout=PATIENCE)
    assert [client.add(a=1, b=2), client.call("multiply", a=2, b=3)] == [3, 6]
    assert client.multiply.future(a=4, b=5).result(PATIENCE) == 20
    with pytest.raises(TypeError, match=r"multiply\(\) takes keyword arguments"):
        client.multiply(4, 5)
    other = client.prepare(server="one", version_cap="1.5")
    assert (other.target.server, other.settings.timeout) == ("one", PATIENCE)
    assert (other.can_send_version("1.4"), other.can_send_version("1.6")) == (True, False)
    typed = bus.rpc.client("calculator", Interface)
    assert typed.add(3, b=4) == 7
    assert list(typed.count(3)) == [0, 1, 2]
    assert bus.rpc.stats["calculator", "add"].calls == 3
    assert bus.rpc.options.timeout == PATIENCE
    with pytest.raises(AttributeError):
        client._nothing  # noqa: B018


def test_casts(bus: BlockingBus, calculator: Calculator) -> None:
    """Casts and messages to all servers reach them."""
    client = bus.rpc.client("calculator")
    bus.rpc.cast("calculator", "note", {"text": "a"})
    bus.rpc.fanout("calculator", "note", {"text": "b"})
    client.cast("note", text="c")
    client.fanout("note", text="d")
    until(lambda: sorted(calculator.log) == ["a", "b", "c", "d"], "the messages")


def test_headers_travel_with_the_thread(bus: BlockingBus, calculator: Calculator) -> None:
    """What a thread says of its context goes along, and from there on; another thread's does not."""
    with use_headers(user="ada"):
        assert bus.rpc.call("calculator", "again") == ["ada", True]
        assert in_thread(bus.rpc.call, "calculator", "who").result(PATIENCE) == [None, True]
    assert bus.rpc.call("calculator", "again") == [None, True]


def test_streams(bus: BlockingBus, calculator: Calculator) -> None:
    """A stream is iterated; leaving it by `break`, or closing it, ends the server's work."""
    assert list(bus.rpc.stream("calculator", "count", {"below": 100})) == list(range(100))
    for leave in (False, True):
        calculator.left.clear()
        stream = bus.rpc.client("calculator").stream("count", below=10**9)
        for number in stream:
            if number == 3:
                break
        if leave:
            with stream:
                pass
            assert list(stream) == []
        del stream
        assert calculator.left.wait(PATIENCE)


def test_nobody_answers(bus: BlockingBus, calculator: Calculator) -> None:
    """What goes wrong is raised as on the loop."""
    with pytest.raises(NoRoute):
        bus.rpc.call("nobody", "add")
    with pytest.raises(CallTimeout):
        bus.rpc.call("calculator", "hang", timeout=0.01)
    with pytest.raises(TypeError):
        bus.rpc.call("calculator", "add", {"a": 1})
    with pytest.raises(UsageError, match="all servers"):
        bus.rpc.call(Target("calculator", fanout=True), "add")


def test_ctrl_c_tells_the_server(bus: BlockingBus, calculator: Calculator) -> None:
    """Who is interrupted in a call leaves it, and its handler is cancelled; so is a future that is cancelled."""
    with interrupting(lambda: opens(bus) == 1), pytest.raises(KeyboardInterrupt):
        bus.rpc.call("calculator", "hang")
    assert calculator.left.wait(PATIENCE)
    calculator.left.clear()
    future = bus.rpc.call.future("calculator", "hang")
    until(lambda: bus.rpc.stats["calculator", "hang"].calls == 2, "the call")
    assert future.cancel()
    assert not future.cancel() or future.cancelled()
    assert calculator.left.wait(PATIENCE)


def test_servers_start_and_stop(bus: BlockingBus) -> None:
    """A server is started, stopped, waited for and reset, and closing it after the bus does nothing."""
    server = bus.rpc.serve("calculator", Calculator(bus))
    server.start()
    server.reset()
    assert bus.rpc.call("calculator", "add", {"a": 1, "b": 1}) == 2
    server.stop()
    server.wait()
    with pytest.raises(NoRoute):
        bus.rpc.call("calculator", "add", {"a": 1, "b": 1})
    server.start()
    waiting = server.wait.future()
    bus.close()
    assert isinstance(waiting.exception(PATIENCE), Closed | None)
    server.close()
