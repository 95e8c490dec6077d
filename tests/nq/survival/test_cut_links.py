"""Links that are cut at any byte, again and again: whatever was put arrives once, in order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from redpoll import nq
from redpoll.testing import FaultProxy, Faults
from tests.blocking.support import PATIENCE, in_thread, until
from tests.nq.support import End, LoopThread, World

MANY = 10_000

#: Seconds of a session: no cut takes so long.
RESUME = 10.0


class Cutter:
    """A proxy in a thread of its own, and what becomes of its connections."""

    def __init__(self, netloc: nq.NetworkLocation) -> None:
        self._loop = LoopThread()
        self.proxy = FaultProxy(str(netloc), seed=0)
        self._loop.run(self.proxy.start())
        address = self.proxy.address
        self.netloc = nq.NetworkLocation(address.host, address.port)

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        """Call a method of the proxy."""
        return self._loop.call(lambda: getattr(self.proxy, name)(*args, **options))

    @property
    def connections(self) -> int:
        """How many it has had."""
        count: int = self.call("stats").connections
        return count

    def cut_each_after(self, draw: random.Random, most: int) -> None:
        """Let the next connections end when some bytes have passed one way, so many at most."""
        faults = Faults(cut_after=int(most * draw.random()), cut=draw.choice(("rst", "fin")))
        self.call("set", faults, draw.choice(("forward", "back")), to="future")

    def end(self) -> None:
        """Close all."""
        self.call("close")
        self._loop.end()


@pytest.fixture
def cutter(netloc: nq.NetworkLocation) -> Iterator[Cutter]:
    """What cuts the links that go by it."""
    made = Cutter(netloc)
    yield made
    made.end()


def body(number: int) -> bytes:
    """What a message has: some are fragments, some stay small."""
    return number.to_bytes(4) * (1 if number % 100 else 2000)


#: Links in a row that brought an end nothing, after which the next ones may last so many times as long, until one brings it
#: something.
_VAIN = 48

#: Seconds that a message may take where its links are cut again and again, some of them before both ends know of them.
_CUT_PATIENCE = 120.0


def _put_all(end: End, count: int) -> list[Any]:
    return [end.made.put((number, body(number))) for number in range(count)]


def _get_all(end: End, numbers: list[int], count: int) -> None:
    for number in range(count):
        message = end.get(timeout=_CUT_PATIENCE)
        numbers.append(number)
        assert message.data[0] == number
        assert message.data[1] == body(number)
        assert not message.redelivered


def _cut_at_random(world: World, cutter: Cutter, count: int, seed: int, most: int, **given: Any) -> int:
    """Pass so many messages each way over links that are cut after so many bytes at most; how many links it took."""
    # A link of which one half is left by a cut is found out by a ping that is not answered.
    options: dict[str, Any] = {"resume": RESUME, "keepalive": 0.5, "transport_size": 4096, **given}
    server = world.server(**options)
    client = world.client(netloc=cutter.netloc, **options)
    client.ready()
    draw = random.Random(seed)
    numbers: list[list[int]] = [[], []]
    getting = [in_thread(_get_all, end, its, count) for end, its in zip((server, client), numbers, strict=True)]
    puts = _put_all(client, count) + _put_all(server, count)
    seen = 0
    before, vain = [0, 0], [0, 0]
    while not all(each.done() for each in getting):
        # What is in flight is sent again over each link, in one burst each way. The confirmations stand behind that, and may
        # be cut off with the link, time after time.
        arrived = [len(each) for each in numbers]
        vain = [
            0 if now > last or now == count else links + 1
            for now, last, links in zip(arrived, before, vain, strict=True)
        ]
        before = arrived
        cutter.cut_each_after(draw, most if max(vain) < _VAIN else most * _VAIN)
        if not seen:
            cutter.call("cut", "rst")
        seen = cutter.connections
        until(lambda seen=seen: cutter.connections > seen or all(each.done() for each in getting), "another link")  # type: ignore[misc]
    for each in getting:
        each.result(PATIENCE)
    # What was drawn last holds for each further link: one that ends in its greeting would confirm nothing, ever.
    cutter.call("set", Faults(), to="all")
    assert [put.exception(PATIENCE) for put in puts] == [None] * 2 * count
    client.close()
    return seen


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("confirm", ["receive", "get"])
def test_at_random_bytes(world: World, cutter: Cutter, confirm: str) -> None:
    """Ten thousand messages each way over links that are cut arrive once, in order, and their futures say so."""
    assert _cut_at_random(world, cutter, MANY, 2, 250_000, confirm=confirm) > 10


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(5))
def test_at_more_random_bytes(world: World, cutter: Cutter, seed: int) -> None:
    """The same over dozens of links."""
    assert _cut_at_random(world, cutter, MANY, seed, 100_000) > 24


def test_while_they_meet(world: World, cutter: Cutter) -> None:
    """Links that are cut anywhere in their first bytes keep nobody for long: the ends meet over the first that lasts."""
    server = world.server(resume=RESUME)
    for cut_after in range(0, 400, 13):
        for direction in ("forward", "back"):
            cutter.call("set", Faults(cut_after=cut_after), direction, to="future")
            before = cutter.connections
            client = world.client(netloc=cutter.netloc, resume=RESUME)
            client.put(cut_after)
            until(lambda before=before: cutter.connections > before, "a link")  # type: ignore[misc]
            cutter.call("set", Faults(), to="future")
            message = server.get()
            assert message == nq.Message(client.id, cut_after)
            server.put("back", client.id).result()
            assert client.get().data == "back"
            client.close()
