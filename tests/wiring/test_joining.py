"""How queues join an exchange."""

from __future__ import annotations

from typing import Any

import pytest

from redpoll import Wiring
from redpoll.errors import PeerLost, ProtocolError, WiringError
from redpoll.wiring import AtLimit, Limits, Style
from redpoll.wiring.joining import attach, leave
from redpoll.wiring.pipe import Join
from redpoll.wiring.trunk import LocalTrunk

pytestmark = pytest.mark.asyncio


class Far(LocalTrunk):
    """A trunk whose other end is this test."""

    answer: dict[str, Any]

    async def ask(self, word: dict[str, Any], timeout: float | None) -> dict[str, Any]:
        self.words = [*getattr(self, "words", []), word]
        return dict(self.answer)

    def tell(self, word: dict[str, Any]) -> None:
        self.words = [*getattr(self, "words", []), word]

    def send_data(self, pipe: Any, chunk: Any) -> None:
        self.sent = [*getattr(self, "sent", []), (pipe.handle, chunk.first, chunk.batch.messages)]

    def send_mark(self, pipe: Any, first: int) -> None:
        self.sent = [*getattr(self, "sent", []), (pipe.handle, first, [])]


def far(wiring: Wiring, run: bytes = b"1", **answer: Any) -> Far:
    """A trunk that answers so."""
    trunk = Far(wiring._board, b"i", run)
    trunk.answer = {"handle": 5, "messages": 3, "bytes": None, **answer}
    return trunk


def numbers(trunk: Far) -> tuple[int, int, int]:
    """What it was told last of where a queue joins."""
    last = trunk.words[-1]
    return last["first"], last["at"], last["missed"]


async def test_first_and_second() -> None:
    """The first queue joins before the first message; the second one behind what was sent, by the same pipe."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        trunk = far(wiring)
        await attach(wiring._board, Join(exchange, "1"), trunk, None)
        assert numbers(trunk) == (0, 0, 0)
        await exchange.send_many([b"x"] * 5)
        exchange.stage_out()
        await attach(wiring._board, Join(exchange, "2"), trunk, None)
        assert numbers(trunk) == (3, 5, 0)
        assert len(exchange.pipes) == len(trunk.pipes) == 1
        assert [each for _, first, each in trunk.sent] == [[b"x"]] * 3


async def test_balance() -> None:
    """A balancing exchange has a pipe for each queue."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E", style=Style.BALANCE)
        trunk = far(wiring)
        for name in ("1", "2"):
            await attach(wiring._board, Join(exchange, name), trunk, None)
        assert len(exchange.pipes) == 2


async def test_back() -> None:
    """The same run is told where the pipe goes on; another one what it misses, and gets what waited."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E", limits=Limits(messages=4))
        join = Join(exchange, "Q")
        trunk = far(wiring)
        await attach(wiring._board, join, trunk, None)
        await exchange.send_many([b"x"] * 5)
        exchange.stage_out()
        exchange.pipes[0].credited(1)
        trunk.lose(PeerLost(None, ""), final=False)
        same = far(wiring, expected=4, taken=2)
        await attach(wiring._board, join, same, None)
        assert numbers(same) == (4, 4, 3)
        assert same.sent[0] == (5, 4, [])
        assert same.sent[1] == (5, 4, [b"x"])
        same.lose(PeerLost(None, ""), final=False)
        other = far(wiring, b"2")
        await attach(wiring._board, join, other, None)
        assert numbers(other) == (5, 5, 3)
        assert exchange.pipes[0].outlet.taken == 5


async def test_dropped_while_lost() -> None:
    """What was dropped while there was no other end is told as missing, too."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E", limits=Limits(messages=2), at_limit=AtLimit.DROP_OLD)
        join = Join(exchange, "Q")
        trunk = far(wiring)
        await attach(wiring._board, join, trunk, None)
        trunk.lose(PeerLost(None, ""), final=False)
        await exchange.send_many([b"%d" % number for number in range(10)])
        exchange.stage_out()
        again = far(wiring, b"2")
        await attach(wiring._board, join, again, None)
        first, at, missed = numbers(again)
        # Nothing before 8 comes any more: the numbers say so.
        assert (first, at, missed) == (0, 0, 0)
        assert [(first, each) for _, first, each in again.sent] == [(8, []), (8, [b"8"]), (9, [b"9"])]


async def test_leaves() -> None:
    """A queue leaves behind what was sent; with the last one the pipe ends when all of that is sent."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        trunk = far(wiring)
        join = Join(exchange, "Q")
        await attach(wiring._board, join, trunk, None)
        await exchange.send_many([b"x"] * 4)
        (pipe,) = exchange.pipes
        leave(join)
        assert trunk.words[-1] == {"word": "close", "pipe": pipe.number, "queue": "Q", "at": 4}
        assert not exchange.pipes
        assert trunk.pipes
        pipe.credited(3)
        assert trunk.words[-1] == {"word": "end", "pipe": pipe.number}
        assert not trunk.pipes
        assert leave(join) is None


@pytest.mark.parametrize(
    "answer", [{"handle": "5"}, {"messages": 0}, {"bytes": "many"}, {"error": "WiringError", "arguments": ["no"]}]
)
async def test_bad_answers(answer: dict[str, Any]) -> None:
    """An answer that makes no sense, or says no, leaves nothing behind."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        trunk = far(wiring, **answer)
        with pytest.raises((ProtocolError, WiringError)):
            await attach(wiring._board, Join(exchange, "Q"), trunk, None)
        assert not exchange.pipes
        assert not trunk.pipes
