"""One connection through the proxy: what is done to it, and how its end reaches both sides."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Iterator

import pytest

from redpoll.testing.faults import Faults, Step
from redpoll.testing.passage import Passage
from tests.node.support import elapse, until

pytestmark = pytest.mark.asyncio


class Noted:
    """A proxy that counts what its connection tells it."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.over = False
        self.holds = False

    def count(self, name: str, number: int = 1) -> None:
        self.counts[name] += number

    def moved(self, passage: Passage) -> None:
        pass

    def holding(self, passage: Passage) -> None:
        self.holds = True

    def closed(self, passage: Passage) -> None:
        self.over = True


def passage(far: socket.socket) -> tuple[Passage, Noted, socket.socket]:
    """A connection whose client end is ours; it has not dialled yet."""
    client, near = socket.socketpair()
    noted = Noted()
    for sock in (client, near, far):
        sock.setblocking(False)
    loop = asyncio.get_running_loop()
    made = Passage(1, near, far, watcher=noted, loop=loop, seed=1, faults=(Faults(), Faults()), bound=100)
    return made, noted, client


async def test_waits_for_the_target() -> None:
    """What the client writes before the target is reached arrives when it is."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        made, _, client = passage(socket.socket())
        with client:
            client.send(b"early")
            made.dial(server.getsockname())
            accepted, _ = await loop.sock_accept(server)
            with accepted:
                assert await loop.sock_recv(accepted, 100) == b"early"
            made.close()


async def test_target_that_refuses() -> None:
    """A target that cannot be reached ends the connection, and is counted."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = server.getsockname()
    made, noted, client = passage(socket.socket())
    with client:
        made.dial(nobody)
        await until(lambda: noted.over, "the end")
        assert noted.counts["unreachable"] == 1


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_cut_while_dialling(how: str) -> None:
    """A connection that is cut before the target was reached is gone at once, and cut again it is still gone."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        made, noted, client = passage(socket.socket())
        with client:
            made.dial(server.getsockname())
            for _ in range(2):
                made.cut(how)  # type: ignore[arg-type]
            assert noted.over
            assert noted.counts["rst"] == 1


async def test_silenced_while_dialling() -> None:
    """A connection that is silenced before the target was reached passes nothing, and is open."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        made, noted, client = passage(socket.socket())
        with client:
            made.cut("silence")
            made.dial(server.getsockname())
            client.send(b"x")
            accepted, _ = await loop.sock_accept(server)
            with accepted:
                for _ in range(10):
                    await asyncio.sleep(0)
                assert (made.silenced, noted.over, noted.counts["forward"]) == (True, False, 0)
            made.close()


async def test_steps_are_forgotten() -> None:
    """Forgotten steps do not happen, and a freeze that was to end does not end by itself."""
    made, noted, client = passage(socket.socket())
    with client:
        made.follow(iter([Step(do="rst", after=0.001)]))
        made.freeze("forward", 0.001)
        made.forget_steps()
        await elapse(0.02)
        assert not noted.over
        assert made.flows["forward"].frozen
        made.close()
        made.follow(iter([Step(do="rst")]))


async def test_conditions_come_back() -> None:
    """Conditions that are set for a while are those of before again, each direction its own."""
    made, _, client = passage(socket.socket())
    with client:
        made.set(Faults(pieces=1), "forward")
        seen: list[object] = []

        def steps() -> Iterator[Step]:
            yield Step(do="set", faults=Faults(pieces=2), seconds=0.001)
            seen.extend(flow.faults.pieces for flow in made.flows.values())

        made.follow(steps())
        await until(lambda: seen == [2, 2], "the change")
        await until(lambda: made.flows["back"].faults.pieces is None, "its end")
        assert made.flows["forward"].faults.pieces == 1
        made.close()
