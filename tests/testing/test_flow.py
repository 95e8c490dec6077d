"""One direction of a connection: what passes, in which order, on a loop of real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Iterator

import pytest

from redpoll.testing.faults import Faults
from redpoll.testing.flow import Flow
from tests.node.support import until

pytestmark = pytest.mark.asyncio


class Noted:
    """A connection that notes what its flow tells it."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.lost = 0

    def passed(self, flow: Flow, count: int) -> None:
        pass

    def dropped(self, count: int) -> None:
        self.lost += count

    def due_to_cut(self, flow: Flow) -> None:
        self.told.append("due to cut")
        flow.close()

    def ended(self, flow: Flow) -> None:
        self.told.append("ended")

    def source_broke(self) -> None:
        self.told.append("source broke")

    def dest_broke(self, flow: Flow) -> None:
        self.told.append("dest broke")


@contextlib.contextmanager
def flowing(faults: Faults, bound: int = 1000) -> Iterator[tuple[Flow, Noted, socket.socket, socket.socket]]:
    """A flow between two pairs of sockets, with the writer's and the reader's end."""
    writer, source = socket.socketpair()
    dest, reader = socket.socketpair()
    noted = Noted()
    loop = asyncio.get_running_loop()
    with writer, source, dest, reader:
        for sock in (writer, source, dest, reader):
            sock.setblocking(False)
        draw = random.Random(1)
        flow = Flow("forward", source, dest, journey=noted, loop=loop, draw=draw, faults=faults, bound=bound)
        flow.advance()
        try:
            yield flow, noted, writer, reader
        finally:
            flow.close()


async def received(reader: socket.socket, count: int) -> bytes:
    """So many bytes, in however many pieces."""
    data = b""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(10):
        while len(data) < count:
            data += await loop.sock_recv(reader, count - len(data))
    return data


@pytest.mark.parametrize(
    "faults", [Faults(), Faults(pieces=1), Faults(pieces=range(1, 9), jitter=0.001), Faults(rate=1e6)], ids=str
)
async def test_bytes_keep_their_order(faults: Faults) -> None:
    """Whatever the conditions, what arrives is what was written, and the end comes last."""
    data = bytes(range(256)) * 8
    with flowing(faults, bound=100) as (flow, noted, writer, reader):
        await asyncio.get_running_loop().sock_sendall(writer, data)
        writer.shutdown(socket.SHUT_WR)
        assert await received(reader, len(data)) == data
        await until(lambda: noted.told == ["ended"], "the end")
        assert (flow.bytes, flow.over, noted.lost) == (len(data), True, 0)


async def test_frozen_reads_nothing() -> None:
    """Frozen, it leaves the bytes with the system; held, it takes its bound and no more."""
    with flowing(Faults(), bound=10) as (flow, noted, writer, _):
        flow.frozen = True
        flow.advance()
        writer.send(bytes(100))
        for _ in range(10):
            await asyncio.sleep(0)
        flow.silence()
        assert noted.lost == 0
    with flowing(Faults(), bound=10) as (flow, noted, writer, _):
        flow.held = True
        writer.send(bytes(100))
        for _ in range(10):
            await asyncio.sleep(0)
        flow.silence()
        assert noted.lost == 10


async def test_cut_is_due_at_its_byte() -> None:
    """The connection is told when the bytes before the cut have passed and one more is there."""
    with flowing(Faults(cut_after=3)) as (flow, noted, writer, reader):
        writer.send(b"abc")
        assert await received(reader, 3) == b"abc"
        assert noted.told == []
        writer.send(b"d")
        await until(lambda: noted.told == ["due to cut"], "the cut")
        assert flow.bytes == 3


async def test_finished_discards() -> None:
    """Finished, it tells the reader that this was all and drops what still comes, until the writer closes too."""
    with flowing(Faults()) as (flow, noted, writer, reader):
        flow.finish()
        assert await asyncio.get_running_loop().sock_recv(reader, 10) == b""
        writer.send(b"lost")
        writer.shutdown(socket.SHUT_WR)
        await until(lambda: noted.told == ["ended"], "the end")
        assert noted.lost == 4


async def test_finished_behind_the_end() -> None:
    """Finished when the writer's end was read and is held back, it has ended."""
    with flowing(Faults(delay=3600.0)) as (flow, noted, writer, _):
        writer.send(b"lost")
        writer.shutdown(socket.SHUT_WR)
        for _ in range(10):
            await asyncio.sleep(0)
        flow.finish()
        assert (noted.told, noted.lost) == (["ended"], 4)


async def test_broken_ends() -> None:
    """A destination that takes nothing any more is told once."""
    with flowing(Faults()) as (flow, noted, writer, reader):
        reader.close()
        writer.send(b"x")
        await until(lambda: noted.told == ["dest broke"], "the news")
        assert (flow.broken, noted.lost) == (True, 1)
