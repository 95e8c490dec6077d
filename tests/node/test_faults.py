"""Nodes on a network that breaks: whatever it does, each send tells the truth, and nothing is lost or done twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from redpoll import Message, NoAnswer, Node, NotConfirmed, Received, SendError
from redpoll.testing import Chaos, FaultProxy, Faults
from redpoll.testing.plugin import FaultsFactory, NodeFactory
from tests.node.encrypted import Make
from tests.node.support import PATIENCE, elapse, turns, until, within

pytestmark = pytest.mark.asyncio

WINDOW = 8
# A fault may hit a connection in its handshake, which is given up by a clock of its own.
#: Seconds that all sends may take: a proxy that passes a byte at a time has a lot to do.
ENOUGH = 4 * PATIENCE

OPTIONS: dict[str, Any] = {
    "window": WINDOW,
    "slots": 3,
    "fragment_size": 4096,
    "keepalive": 0.1,
    "handshake_timeout": 0.5,
}

#: Sizes of the messages, in turn: small ones, one that travels in fragments, and empty but for its number.
SIZES = (0, 10, 500, 4500)

COUNT = 40

#: Connections that chaos closes or resets before it has done enough.
CUTS = 12


class Worker:
    """A handler that takes a few turns, and knows what it began and what it finished.

    Attributes:
        senders: Identities of the nodes whose messages count. Programs of other tests send to a port that their hub had,
            such as a sign of life of a worker every two seconds.
    """

    def __init__(self) -> None:
        self.senders: set[bytes] = set()
        self.begun: Counter[int] = Counter()
        self.ended: Counter[int] = Counter()
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, message: Received[bytes]) -> bytes:
        if message.remote_identity not in self.senders:
            return b""
        number = int.from_bytes(message.data[:4])
        self.begun[number] += 1
        await self.gate.wait()
        await turns(number % 3)
        self.ended[number] += 1
        return message.data[:4]


class Traffic:
    """Sends and requests from one node to another, numbered, and how each ended."""

    def __init__(self, client: Node[bytes], proxy: FaultProxy, worker: Worker, *, retry: int) -> None:
        self.client = client
        self.proxy = proxy
        self.worker = worker
        self.retry = retry
        self.number = 0
        self.open: dict[int, asyncio.Future[Any]] = {}
        worker.senders.add(client.identity)

    def send(self, count: int = COUNT, *, timeout: float | None = ENOUGH) -> None:
        """Send so many more; every fourth wants an answer."""
        for _ in range(count):
            self.number += 1
            body = self.number.to_bytes(4) + bytes(SIZES[self.number % len(SIZES)])
            message = Message(body, self.proxy.address)
            if self.number % 4 == 3:
                self.open[self.number] = self.client.request(message, timeout=timeout)
            else:
                self.open[self.number] = self.client.send(message, timeout=timeout, retry=self.retry)

    async def some_ended(self, count: int) -> None:
        """Wait until so many have ended, however they did."""
        async with asyncio.timeout(ENOUGH):
            while sum(each.done() for each in self.open.values()) < count:
                await asyncio.wait(
                    [each for each in self.open.values() if not each.done()], return_when=asyncio.FIRST_COMPLETED
                )

    async def settled(self) -> None:
        """Wait for all, and look whether each told the truth."""
        await asyncio.wait_for(asyncio.gather(*self.open.values(), return_exceptions=True), ENOUGH)
        worker = self.worker
        for number, future in self.open.items():
            error = future.exception()
            if error is None:
                assert worker.ended[number] == 1, f"{number} succeeded and was done {worker.ended[number]} times"
            elif isinstance(error, NoAnswer):
                assert worker.ended[number] == 1, f"{number} was said to be done"
            else:
                assert isinstance(error, SendError), error
                assert error.sent or not worker.begun[number], f"{number} was begun, and its send says: {error!r}"
        assert max(worker.begun, default=0) <= self.number, f"nobody sent {max(worker.begun)}"
        assert worker.begun.total() == len(worker.begun), f"done twice: {worker.begun - Counter(set(worker.begun))}"

    @property
    def failed(self) -> list[BaseException]:
        """The errors so far."""
        return [error for each in self.open.values() if each.done() and (error := each.exception()) is not None]

    async def nothing_is_lost(self, server: Node[bytes]) -> None:
        """Nothing is pending on either node, and the whole window can be used, as it could at first."""
        for node in (self.client, server):
            await until(
                lambda: (node.stats().in_flight, node.stats().queued, node.stats().slots_used) == (0, 0, 0),  # noqa: B023
                f"nothing to be pending: {node.stats()}",
            )
        await within(self.client.ready(self.proxy.address))
        self.worker.gate.clear()
        before = self.client.stats().sent
        self.send(WINDOW + 2)
        await until(lambda: self.client.stats().sent == before + WINDOW, "the window to be filled")
        self.worker.gate.set()
        await self.settled()


def cut(how: Any, direction: Any = "both") -> Callable[[FaultProxy], object]:
    return lambda proxy: proxy.cut(how, direction)


def conditions(**options: Any) -> Callable[[FaultProxy], object]:
    return lambda proxy: proxy.set(Faults(**options))


FAULTS: dict[str, Callable[[FaultProxy], object]] = {
    "fin": cut("fin"),
    "fin forward": cut("fin", "forward"),
    "fin back": cut("fin", "back"),
    "rst": cut("rst"),
    "silence": cut("silence"),
    "silence forward": cut("silence", "forward"),
    "silence back": cut("silence", "back"),
    "reorder": lambda proxy: proxy.reorder(),
    "pieces of a byte": conditions(pieces=1),
    "pieces": conditions(pieces=range(1, 60)),
    "delay": conditions(delay=0.005, jitter=0.01),
    "rate": conditions(rate=3_000_000),
    "cut at a byte": conditions(cut_after=40_000, cut="fin"),
    "rst at a byte": conditions(cut_after=40_001, cut="rst"),
}


@pytest.mark.parametrize("retry", [0, 3])
@pytest.mark.parametrize("fault", FAULTS)
async def test_the_truth_is_told(
    redpoll_node: NodeFactory, redpoll_faults: FaultsFactory, fault: str, retry: int
) -> None:
    """A fault amid traffic: what succeeded was done once, what says it was not sent was not begun, nothing is lost."""
    worker = Worker()
    options = {**OPTIONS, "keepalive": 0.1 if fault.startswith(("silence", "reorder")) else 30.0}
    async with (
        redpoll_node(worker, **options) as server,
        redpoll_faults(server) as proxy,
        redpoll_node(**options) as client,
    ):
        traffic = Traffic(client, proxy, worker, retry=retry)
        traffic.send()
        await traffic.some_ended(COUNT // 4)
        FAULTS[fault](proxy)
        traffic.send()
        await traffic.some_ended(COUNT)
        FAULTS[fault](proxy)
        await traffic.settled()
        if retry:
            # A request is not sent again, and one may be in flight at each of the two cuts.
            assert all(isinstance(each, NotConfirmed | NoAnswer) for each in traffic.failed), traffic.failed
        proxy.calm()
        await traffic.nothing_is_lost(server)


@pytest.mark.parametrize("direction", ["forward", "back", "both"])
async def test_frozen_then_thawed(redpoll_node: NodeFactory, redpoll_faults: FaultsFactory, direction: Any) -> None:
    """A network that stands still for less than the keepalive takes loses nothing, and no link either."""
    worker = Worker()
    options = {**OPTIONS, "keepalive": 30.0}
    async with (
        redpoll_node(worker, **options) as server,
        redpoll_faults(server) as proxy,
        redpoll_node(**options) as client,
    ):
        traffic = Traffic(client, proxy, worker, retry=0)
        traffic.send()
        await traffic.some_ended(COUNT // 2)
        proxy.freeze(direction)
        traffic.send()
        await elapse(0.05)
        assert not all(each.done() for each in traffic.open.values())
        proxy.thaw()
        await traffic.settled()
        assert traffic.failed == []
        assert client.stats().reconnects == 0
        await traffic.nothing_is_lost(server)


@pytest.mark.parametrize("direction", ["forward", "back", "both"])
async def test_frozen_for_too_long(redpoll_node: NodeFactory, redpoll_faults: FaultsFactory, direction: Any) -> None:
    """A link that stands still for longer is given up; what was sent again is not done twice when the old one thaws."""
    worker = Worker()
    async with (
        redpoll_node(worker, **OPTIONS) as server,
        redpoll_faults(server) as proxy,
        redpoll_node(**OPTIONS) as client,
    ):
        traffic = Traffic(client, proxy, worker, retry=3)
        traffic.send()
        await traffic.some_ended(COUNT // 4)
        proxy.freeze(direction, to="present")
        traffic.send()
        await until(lambda: client.stats().reconnects, "another link")
        proxy.thaw()
        await traffic.settled()
        await traffic.nothing_is_lost(server)


async def test_slow_then_given_up(redpoll_node: NodeFactory, redpoll_faults: FaultsFactory) -> None:
    """What is sent again over a new link is not done twice, also while the old one still brings what was under way."""
    worker = Worker()
    async with (
        redpoll_node(worker, **OPTIONS) as server,
        redpoll_faults(server) as proxy,
        redpoll_node(**OPTIONS) as client,
    ):
        await client.ready(proxy.address)
        proxy.freeze("back", to="present")
        proxy.set(Faults(rate=30_000), "forward", to="present")
        traffic = Traffic(client, proxy, worker, retry=3)
        traffic.send(2)
        bulk = client.send(Message(bytes(150_000), proxy.address), retry=3)
        await until(lambda: client.stats().reconnects, "another link")
        proxy.calm()
        await within(bulk)
        await traffic.settled()


@pytest.mark.parametrize("count", [0, 1, 17, 18, 19, 44, 45, 46, 60, 72, 73, 100])
@pytest.mark.parametrize("direction", ["forward", "back"])
async def test_cut_at_each_part_of_the_opening(
    redpoll_node: NodeFactory, redpoll_faults: FaultsFactory, direction: Any, count: int
) -> None:
    """A connection that breaks in its opening or first frame: sends with a retry succeed or are not confirmed."""
    worker = Worker()
    async with (
        redpoll_node(worker, **OPTIONS) as server,
        redpoll_faults(server) as proxy,
        redpoll_node(**OPTIONS) as client,
    ):
        for how in ("fin", "rst"):
            proxy.set(Faults(cut_after=count, cut=how, pieces=1), direction, to="all")
            traffic = Traffic(client, proxy, worker, retry=3)
            traffic.number = worker.begun.total()
            traffic.send(2)
            ended = traffic.open.values()
            await until(lambda: getattr(proxy.stats(), how) > 1 or all(each.done() for each in ended), "cuts")  # noqa: B023
            proxy.set()
            await traffic.settled()
            assert not [each for each in traffic.failed if not isinstance(each, NotConfirmed)]
            proxy.cut()
        proxy.calm()
        traffic = Traffic(client, proxy, worker, retry=0)
        traffic.number = 1000
        await traffic.nothing_is_lost(server)


async def test_refused_for_a_while(redpoll_node: NodeFactory, redpoll_faults: FaultsFactory) -> None:
    """While nobody listens messages wait; when somebody does again they are handled, in order."""
    worker = Worker()
    async with redpoll_node(worker, **{**OPTIONS, "slots": 1}) as server, redpoll_faults(server) as proxy:
        async with redpoll_node(**OPTIONS) as client:
            proxy.refuse()
            traffic = Traffic(client, proxy, worker, retry=0)
            traffic.send(12)
            await elapse(0.05)
            assert not worker.begun
            proxy.admit()
            await traffic.settled()
            assert traffic.failed == []
            await traffic.nothing_is_lost(server)


async def test_slow_reader_slows_the_sender(redpoll_node: NodeFactory, redpoll_faults: FaultsFactory) -> None:
    """Behind a frozen network no more than a window is sent, however much waits."""
    worker = Worker()
    options = {**OPTIONS, "keepalive": 30.0}
    async with (
        redpoll_node(worker, **options) as server,
        redpoll_faults(server) as proxy,
        redpoll_node(**options) as client,
    ):
        await client.ready(proxy.address)
        proxy.freeze()
        traffic = Traffic(client, proxy, worker, retry=0)
        traffic.send(100)
        await elapse(0.02)
        assert client.stats().sent == WINDOW
        assert client.stats().queued == 100 - WINDOW
        proxy.calm()
        await traffic.settled()
        assert traffic.failed == []


async def chaotic(
    ends: tuple[Node[bytes], Node[bytes]],
    workers: tuple[Worker, Worker],
    proxies: tuple[FaultProxy, FaultProxy],
) -> tuple[Traffic, Traffic]:
    """Send both ways through proxies in chaos, until that has cut both, and often; all has settled then."""
    (a, b), (to_a, to_b) = ends, proxies
    there, back = Traffic(a, to_b, workers[1], retry=3), Traffic(b, to_a, workers[0], retry=0)
    # Not each often: one node's links may carry what both send, and the other's proxy has next to nothing to cut.
    while min(cuts := [proxy.stats().rst + proxy.stats().fin for proxy in proxies]) < 1 or sum(cuts) < CUTS:
        for traffic in (there, back):
            traffic.send(5, timeout=2.0)
            await traffic.some_ended(traffic.number - 20)
        await elapse(0.01)
    for proxy in proxies:
        proxy.calm()
    await there.settled()
    await back.settled()
    return there, back


CHAOS = Chaos(interval=(0.005, 0.05), silence=0.03, pause_seconds=(0.001, 0.05))


@pytest.mark.parametrize("seed", range(4))
async def test_chaos(redpoll_node: NodeFactory, redpoll_faults: FaultsFactory, seed: int) -> None:
    """Whatever chance does to the connections, both ways, each send tells the truth, and at the end nothing is lost."""
    workers = Worker(), Worker()
    async with redpoll_node(workers[0], **OPTIONS) as a, redpoll_node(workers[1], **OPTIONS) as b:
        async with (
            redpoll_faults(a, seed=seed, chaos=CHAOS) as to_a,
            redpoll_faults(b, seed=seed + 100, chaos=CHAOS) as to_b,
        ):
            there, back = await chaotic((a, b), workers, (to_a, to_b))
            await there.nothing_is_lost(b)
            await back.nothing_is_lost(a)


@pytest.mark.parametrize("seed", range(2))
async def test_chaos_between_certificates(
    redpoll_node: NodeFactory, redpoll_faults: FaultsFactory, issued: Make, seed: int
) -> None:
    """A certificate lets a new link in at once, beside older ones that are not read to their end: each send is done once."""
    workers = Worker(), Worker()
    options = [{**OPTIONS, "encryption": True, "tls": issued()} for _ in workers]
    async with redpoll_node(workers[0], **options[0]) as a, redpoll_node(workers[1], **options[1]) as b:
        async with (
            redpoll_faults(a, seed=seed, chaos=CHAOS) as to_a,
            redpoll_faults(b, seed=seed + 100, chaos=CHAOS) as to_b,
        ):
            await chaotic((a, b), workers, (to_a, to_b))
