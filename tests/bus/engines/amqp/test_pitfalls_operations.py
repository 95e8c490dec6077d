"""Pitfalls 38 to 43 of AMQP clients: what an operator sees."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections import Counter
from functools import partial

import pytest

import redpoll
from redpoll.bus import EngineState, Task
from redpoll.errors import DialFailed, RedpollError
from redpoll.testing import Faults
from redpoll.testing.certificates import Certificates
from tests.bus.engines.amqp.support import BRIEF, Consumers, Way, elapse, pair, states, until, within
from tests.node.support import turns
from tests.ports import free_port
from tests.rabbitmq import Broker

pytestmark = [pytest.mark.broker, pytest.mark.asyncio]
nightly = pytest.mark.nightly


def objects() -> Counter[str]:
    """Count what there is of redpoll's, by class."""
    gc.collect()
    named = (type(each) for each in gc.get_objects())
    return Counter(
        f"{kind.__module__}.{kind.__qualname__}" for kind in named if str(kind.__module__).startswith("redpoll.")
    )


def _has(heard: list[str], count: int) -> bool:
    return len(heard) == count


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=[nightly, pytest.mark.timeout(300)])])
async def test_38_nothing_stays(rabbitmq: Broker, times: int) -> None:
    """Calls, tasks, subscriptions and reconnects leave nothing: no object here, no queue, channel or consumer there."""

    async def work(task: Task) -> object:
        return task.data

    async with Way(rabbitmq) as way, pair(way) as (bus, other):
        seen = states(bus)
        async with other.rpc.serve("echo", lambda value: value), bus.tasks.worker(work, queue="q"):

            async def once() -> None:
                await asyncio.gather(*(bus.rpc.call("echo", None, each, timeout=20) for each in range(50)))
                await asyncio.gather(*(bus.tasks.run(each, queue="q", timeout=20) for each in range(50)))
                for _ in range(10):
                    async with bus.broadcast.subscribe(lambda _: None, subject="a.*"):
                        pass
                    async with bus.tasks.worker(work, queue="p"):
                        pass
                for _ in range(2):
                    seen.clear()
                    way.cut()
                    await until(lambda: "ready" in seen, "the engine")

            await once()
            await once()
            await turns()
            before, queues = objects(), rabbitmq.queues()
            await until(lambda: rabbitmq.connections() <= 4, "the end of lost connections")
            channels = rabbitmq.channels()
            for _ in range(2 * times):
                await once()
            await turns()
            grown = {name: count for name, count in (objects() - before).items() if count > 2 * times}
            assert not grown
            await until(lambda: len(rabbitmq.queues()) == len(queues), "no more queues")
            await until(lambda: rabbitmq.channels() <= channels, "no more channels")
    await until(lambda: not rabbitmq.connections(), "no connection")


async def test_39_few_channels(rabbitmq: Broker) -> None:
    """A server that allows few channels has more consumers than these served, or says so; it does not lose the connection."""
    rabbitmq.set_limit("channel_max", 8)
    got: list[int] = []

    async def work(task: Task) -> None:
        got.append(task.data)

    async with Way(rabbitmq) as way, redpoll.connect(way.url) as bus:
        made, workers = way.stats().connections, 0
        for number in range(20):
            begun = asyncio.ensure_future(bus.tasks.worker(work, queue=f"q{number}").__aenter__())
            await asyncio.wait([begun])
            error = begun.exception()
            if error is not None:
                assert isinstance(error, RedpollError)
                assert "channel" in str(error)
                break
            workers += 1
        assert workers >= 4
        for number in range(workers):
            await bus.tasks.submit(number, queue=f"q{number}", no_reply=True)
        await until(lambda: len(got) == workers, "the tasks")
        assert way.stats().connections == made


async def test_40_names_of_hosts(rabbitmq: Broker, redpoll_pki: Certificates) -> None:
    """Certificates are checked, names included, for each host of several by its own."""
    url = rabbitmq.encrypted_url(redpoll_pki)
    async with redpoll.connect(url.replace("localhost:", f"localhost:{free_port()},localhost:")) as bus:
        await bus.queues.declare("q")
    for bad, problem in (
        (url.replace("localhost", "127.0.0.1"), "its certificate is not valid for 127.0.0.1"),
        (
            url.replace(str(redpoll_pki.ca), str(redpoll_pki.another().ca)),
            "its certificate is not signed by a CA in the",
        ),
        (url.partition("?")[0], "its certificate is not signed by a CA in the file of ca=, or the system's"),
        (f"amqps://guest:guest@localhost:{rabbitmq.server.port}/", "the peer sends data that is not TLS"),
    ):
        with pytest.raises(redpoll.TLSError, match=problem):
            await redpoll.connect(bad).__aenter__()
    with pytest.raises(DialFailed, match="the server expects TLS at this port: connect to amqps://"):
        await redpoll.connect(url.partition("?")[0].replace("amqps", "amqp"), connect_timeout=2.0).__aenter__()


async def test_41_ready_means_that_all_is_there(rabbitmq: Broker) -> None:
    """The engine says that it is ready only when every consumer is there again; until then it is not healthy."""
    async with Way(rabbitmq) as way, pair(way) as (bus, other), Consumers(bus) as consumers:
        await consumers.reached(other)
        bodies = [f"{number}" for number in range(3)]
        heard: list[str] = []

        def watch(state: EngineState, _: str) -> None:
            # What is sent from now on has to arrive, though nothing of it is kept for whoever is absent.
            if state is EngineState.READY:
                heard.append(bodies[len(heard)])
                sending.append(asyncio.ensure_future(other.broadcast.send(heard[-1], subject="news.now")))

        sending: list[asyncio.Future[object]] = []
        bus.status.watch(watch)
        for count in range(1, 4):
            way.cut()
            await until(lambda: bus.state is not EngineState.READY, "the loss")
            assert not await bus.healthy()
            await until(partial(_has, heard, count), "the return")
            assert await bus.healthy()
            await until(lambda: heard[-1] in consumers.got["subscription"], "what was sent then")


async def test_42_few_lines_are_logged(rabbitmq: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """While a server is away the log names it, once in a while, without tracebacks, and says when it is back."""
    with caplog.at_level(logging.INFO):
        async with Way(rabbitmq) as way, pair(way) as (bus, other), Consumers(bus) as consumers:
            caplog.clear()
            way.refuse()
            way.cut()
            await until(lambda: bus.state is EngineState.RECONNECTING, "the loss")
            await elapse(2.0)
            way.admit()
            await consumers.reached(other)
            await until(lambda: bus.state is EngineState.READY, "the engine")
            ours = [each for each in caplog.records if each.name.startswith(("redpoll.bus", "asyncio"))]
    assert 2 <= len(ours) <= 30
    assert not [each for each in ours if each.exc_info]
    assert any(str(way.address.port) in each.getMessage() for each in ours)


@pytest.mark.parametrize(
    "state", ["silenced", "refused", *(pytest.param(each, marks=nightly) for each in ("frozen", "blocked"))]
)
async def test_43_closing(rabbitmq: Broker, state: str) -> None:
    """Closing takes few seconds, whatever state the server is in; a second close does nothing."""
    async with Way(rabbitmq) as way:
        bus = await redpoll.connect(way.url, **BRIEF).__aenter__()
        await bus.tasks.worker(lambda task: None, queue="q").__aenter__()
        if state == "frozen":
            way.freeze()
        elif state == "silenced":
            way.cut("silence")
        elif state == "refused":
            way.refuse()
            way.cut()
        else:
            rabbitmq.block()
        waiting = asyncio.ensure_future(bus.tasks.submit(1, queue="q", no_reply=True))
        await elapse(0.05)
        began = time.monotonic()
        await within(bus.close(), 15)
        await bus.close()
        assert time.monotonic() - began < 10.0
        assert bus.state is EngineState.CLOSED
        await asyncio.wait([waiting], timeout=1)
        assert waiting.done()
        waiting.exception()


async def test_43_closing_behind_a_cancelled_submit(rabbitmq: Broker) -> None:
    """A submit that was cancelled when it was sent, and is not confirmed, neither cancels nor delays the closing."""
    async with Way(rabbitmq) as way:
        bus = await redpoll.connect(way.url).__aenter__()
        await bus.queues.declare("q")
        way.set(Faults(delay=0.2))
        submitting = asyncio.ensure_future(bus.tasks.submit(1, queue="q", no_reply=True))
        await elapse(0.05)
        submitting.cancel()
        await asyncio.wait([submitting])
        await within(bus.close())
        assert bus.state is EngineState.CLOSED
        await until(lambda: not rabbitmq.connections(), "the end of its connections")


async def test_43_leaving_while_cancelled(rabbitmq: Broker) -> None:
    """A block that is left by being cancelled releases its connections, and gives back what its worker holds."""
    begun = asyncio.Event()

    async def work(task: Task) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def run() -> None:
        async with redpoll.connect(rabbitmq.url) as bus, bus.tasks.worker(work, queue="q"):
            await asyncio.Event().wait()

    async with redpoll.connect(rabbitmq.url) as other:
        await until(lambda: rabbitmq.connections() == 2, "the end of connections of other tests")
        connections = rabbitmq.connections()
        running = asyncio.ensure_future(run())
        await until(lambda: rabbitmq.connections() > connections, "the other bus")
        await other.tasks.submit("x", queue="q", no_reply=True)
        await within(begun.wait())
        running.cancel()
        await asyncio.wait([running])
        assert (await within(other.engine.take("q", 10.0))).id
        await until(lambda: rabbitmq.connections() <= connections, "the end of its connections")
