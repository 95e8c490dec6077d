"""How queues join an exchange."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redpoll import Wiring
from redpoll.errors import PeerLost, ProtocolError, UnknownName, WiringError
from redpoll.wiring import AtLimit, Limits, Style
from redpoll.wiring.connection import NO_MESSAGES, Join, LocalTrunk
from redpoll.wiring.joining import attach, leave
from redpoll.wiring.protocol import Batch
from tests.wiring.support import until

pytestmark = pytest.mark.asyncio


class Far(LocalTrunk):
    """A trunk whose other end is this test."""

    answer: dict[str, Any]

    async def ask(self, word: dict[str, Any], timeout: float | None) -> dict[str, Any]:
        self.words = [*getattr(self, "words", []), word]
        return dict(self.answer)

    def tell(self, word: dict[str, Any]) -> None:
        self.words = [*getattr(self, "words", []), word]

    def send_data(self, pipe: Any, first: int, batch: Batch = NO_MESSAGES) -> None:
        self.sent = [*getattr(self, "sent", []), (pipe.handle, first, batch.messages)]


class Slow(Far):
    """One that answers when the test lets it."""

    def hold(self) -> None:
        self.answers: list[asyncio.Future[None]] = []

    async def ask(self, word: dict[str, Any], timeout: float | None) -> dict[str, Any]:
        answer = await super().ask(word, timeout)
        if hasattr(self, "answers"):
            self.answers.append(asyncio.get_running_loop().create_future())
            await self.answers[-1]
        return answer


def slow(wiring: Wiring) -> Slow:
    """A trunk that does."""
    trunk = Slow(wiring._board, b"i", b"1")
    trunk.answer = {"handle": 5, "messages": 3, "bytes": None}
    return trunk


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
        await attach(Join(exchange, "1"), trunk, None)
        assert numbers(trunk) == (0, 0, 0)
        await exchange.send_many([b"x"] * 5)
        exchange.stage_out()
        await attach(Join(exchange, "2"), trunk, None)
        assert numbers(trunk) == (3, 5, 0)
        assert len(exchange.pipes) == len(trunk.pipes) == 1
        assert [each for _, first, each in trunk.sent] == [[b"x"]] * 3


async def test_balance() -> None:
    """A balancing exchange has a pipe for each queue."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E", style=Style.BALANCE)
        trunk = far(wiring)
        for name in ("1", "2"):
            await attach(Join(exchange, name), trunk, None)
        assert len(exchange.pipes) == 2


@pytest.mark.parametrize("style", Style)
@pytest.mark.parametrize("at_once", [False, True])
async def test_bound_twice(style: Style, at_once: bool) -> None:
    """A queue that two have bound has one pipe, until both have unbound it."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E", style=style)
        trunk = far(wiring)
        one, two = Join(exchange, "Q"), Join(exchange, "Q")
        if at_once:
            await asyncio.gather(*(attach(each, trunk, None) for each in (one, two)))
        else:
            await attach(one, trunk, None)
            await attach(two, trunk, None)
        (pipe,) = exchange.pipes
        assert one.pipe is two.pipe is pipe
        assert leave(one) is None
        assert exchange.pipes == [pipe]
        assert leave(two) is not None
        assert not exchange.pipes
        assert not trunk.pipes


@pytest.mark.parametrize("style", Style)
async def test_unbound_while_bound(style: Style) -> None:
    """A queue that one unbinds while another one binds it stays bound, by the pipe that it has."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E", style=style)
        trunk = slow(wiring)
        one, two = Join(exchange, "Q"), Join(exchange, "Q")
        await attach(one, trunk, None)
        (pipe,) = exchange.pipes
        trunk.hold()
        task = asyncio.create_task(attach(two, trunk, None))
        await until(lambda: trunk.answers)
        leave(one)
        trunk.answers[0].set_result(None)
        await task
        assert exchange.pipes == [pipe]
        assert not pipe.ending
        assert not [word for word in trunk.words if word["word"] != "open"]
        leave(two)
        assert not exchange.pipes


@pytest.mark.parametrize("style", Style)
async def test_unbound_while_not_bound(style: Style) -> None:
    """A pipe ends with its last binding also where another one of the same queue was being made, and is not."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E", style=style)
        trunk = slow(wiring)
        one, two = Join(exchange, "Q"), Join(exchange, "Q")
        await attach(one, trunk, None)
        trunk.hold()
        task = asyncio.create_task(attach(two, trunk, None))
        await until(lambda: trunk.answers)
        leave(one)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert [word["word"] for word in trunk.words] == ["open", "open", "close", "end"]
        assert not exchange.pipes
        assert not trunk.pipes


async def test_given_up_beside_another() -> None:
    """A queue whose binding is given up leaves a pipe that is opened for another one meanwhile."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        trunk = slow(wiring)
        trunk.hold()
        one, two = (asyncio.create_task(attach(Join(exchange, name), trunk, None)) for name in ("1", "2"))
        await until(lambda: len(trunk.answers) == 2)
        one.cancel()
        await asyncio.gather(one, return_exceptions=True)
        assert trunk.words[-1] == {"word": "close", "pipe": trunk.words[0]["pipe"], "queue": "1", "at": 0}
        trunk.answers[1].set_result(None)
        await two
        (pipe,) = exchange.pipes
        assert list(pipe.joins) == ["2"]


async def test_last_leaves_while_another_joins() -> None:
    """A pipe whose last queue leaves goes on if it is being opened for another one."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        trunk = slow(wiring)
        one = Join(exchange, "1")
        await attach(one, trunk, None)
        trunk.hold()
        task = asyncio.create_task(attach(Join(exchange, "2"), trunk, None))
        await until(lambda: trunk.answers)
        leave(one)
        assert trunk.words[-1]["word"] == "close"
        trunk.answers[0].set_result(None)
        await task
        (pipe,) = exchange.pipes
        assert list(pipe.joins) == ["2"]
        assert not pipe.ending


async def test_taken_away_while_bound() -> None:
    """A queue that its owner takes away while one more binds it is not bound."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        trunk = slow(wiring)
        await attach(Join(exchange, "Q"), trunk, None)
        (pipe,) = exchange.pipes
        trunk.hold()
        task = asyncio.create_task(attach(Join(exchange, "Q"), trunk, None))
        await until(lambda: trunk.answers)
        wiring._board.hear(trunk, {"word": "gone", "pipe": pipe.number, "queue": "Q", "taken": 0})
        trunk.answers[0].set_result(None)
        with pytest.raises(UnknownName):
            await task
        assert not exchange.pipes
        assert not trunk.pipes


async def test_back() -> None:
    """The same run is told where the pipe goes on; another one what it misses, and gets what waited."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E", limits=Limits(messages=4))
        join = Join(exchange, "Q")
        trunk = far(wiring)
        await attach(join, trunk, None)
        await exchange.send_many([b"x"] * 5)
        exchange.stage_out()
        exchange.pipes[0].credited(1)
        trunk.lose(PeerLost(None, ""), final=False)
        same = far(wiring, expected=4, taken=2)
        await attach(join, same, None)
        assert numbers(same) == (4, 4, 3)
        assert same.sent[0] == (5, 4, [])
        assert same.sent[1] == (5, 4, [b"x"])
        same.lose(PeerLost(None, ""), final=False)
        other = far(wiring, b"2")
        await attach(join, other, None)
        assert numbers(other) == (5, 5, 3)
        assert exchange.pipes[0].outlet.taken == 5


async def test_dropped_while_lost() -> None:
    """What was dropped while there was no other end is told as missing, too."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E", limits=Limits(messages=2), at_limit=AtLimit.DROP_OLD)
        join = Join(exchange, "Q")
        trunk = far(wiring)
        await attach(join, trunk, None)
        trunk.lose(PeerLost(None, ""), final=False)
        await exchange.send_many([b"%d" % number for number in range(10)])
        exchange.stage_out()
        again = far(wiring, b"2")
        await attach(join, again, None)
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
        await attach(join, trunk, None)
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
            await attach(Join(exchange, "Q"), trunk, None)
        assert not exchange.pipes
        assert not trunk.pipes


@pytest.mark.parametrize("style", Style)
async def test_two_trunks_to_one(style: Style) -> None:
    """Where the other end of a second trunk has a pipe by the first one, a queue joins that; else by its own."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E", style=style)
        first, second, stranger = far(wiring), far(wiring), far(wiring)
        one, two, three = (Join(exchange, "Q") for _ in range(3))
        assert await attach(one, first, None) is first
        (pipe,) = exchange.pipes
        second.answer = {"elsewhere": pipe.number}
        assert await attach(two, second, None) is first
        assert exchange.pipes == [pipe]
        assert second.words[0]["elsewhere"] == [pipe.number]
        assert not second.pipes
        assert one.up
        assert two.up
        assert await attach(three, stranger, None) is stranger
        assert len(exchange.pipes) == 2


@pytest.mark.parametrize("style", Style)
async def test_a_lost_pipe_is_opened_by_another_trunk(style: Style) -> None:
    """A queue joins a lost pipe that led to the same wiring: what waits in that would arrive twice beside a new one."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E", style=style)
        first, second, stranger = far(wiring), far(wiring), far(wiring, run=b"2")
        await attach(Join(exchange, "Q"), first, None)
        (pipe,) = exchange.pipes
        first.lose(PeerLost(None, ""), final=False)
        await attach(Join(exchange, "Q"), stranger, None)
        second.answer |= {"expected": 0, "taken": 0}
        assert await attach(Join(exchange, "Q"), second, None) is second
        assert second.words[0]["pipe"] == pipe.number
        assert pipe.trunk is second
        assert len(exchange.pipes) == 2


@pytest.mark.parametrize("style", Style)
async def test_lost_at_the_other_end_of_another_trunk(style: Style) -> None:
    """A pipe that the other end has lost with its trunk is opened again by the trunk over which that was said."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E", style=style)
        first, second = far(wiring), slow(wiring)
        await attach(Join(exchange, "Q"), first, None)
        (pipe,) = exchange.pipes
        second.hold()
        second.answer |= {"elsewhere": pipe.number, "lost": True}
        joining = asyncio.ensure_future(attach(Join(exchange, "Q"), second, None))
        await until(lambda: second.answers)
        second.answer = {"handle": 6, "messages": 3, "bytes": None, "expected": 0, "taken": 0}
        second.answers[0].set_result(None)
        await until(lambda: len(second.answers) == 2)
        second.answers[1].set_result(None)
        assert await joining is second
        assert not first.up
        assert exchange.pipes == [pipe]
        assert pipe.trunk is second


async def test_two_at_once_by_a_second_trunk() -> None:
    """A queue does not join a new pipe before it is known whether another trunk's is to be joined, or is lost meanwhile."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        first, second = far(wiring), slow(wiring)
        await attach(Join(exchange, "Q"), first, None)
        (pipe,) = exchange.pipes
        second.hold()
        second.answer |= {"elsewhere": pipe.number}
        one, two = (asyncio.ensure_future(attach(Join(exchange, "Q"), second, None)) for _ in range(2))
        await until(lambda: second.answers)
        first.lose(PeerLost(None, ""), final=False)
        second.answer = {"handle": 6, "messages": 3, "bytes": None, "expected": 0, "taken": 0}
        second.answers[0].set_result(None)
        with pytest.raises(PeerLost):
            await one
        await until(lambda: len(second.answers) == 2)
        second.answers[1].set_result(None)
        assert await two is second
        assert exchange.pipes == [pipe]


@pytest.mark.parametrize(("identity", "run", "style"), [(b"j", b"1", Style.DISTRIBUTE), (b"i", b"2", Style.DISTRIBUTE)])
async def test_another_wiring_is_not_asked(identity: bytes, run: bytes, style: Style) -> None:
    """Only a wiring that says to be the same run of the same one is asked for pipes by another trunk."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E", style=style)
        other = Far(wiring._board, identity, run)
        other.answer = far(wiring).answer
        for trunk in (far(wiring), other):
            await attach(Join(exchange, "Q"), trunk, None)
        assert "elsewhere" not in other.words[0]


async def test_two_trunks_at_once() -> None:
    """A queue does not join over a second trunk before it is known what becomes of the pipe that is opened over the first."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        first, second = slow(wiring), far(wiring)
        first.hold()
        opening = asyncio.ensure_future(attach(Join(exchange, "Q"), first, None))
        await until(lambda: first.answers)
        (pipe,) = exchange.opening
        second.answer = {"elsewhere": pipe.number}
        joining = asyncio.ensure_future(attach(Join(exchange, "Q"), second, None))
        await asyncio.sleep(0)
        assert not hasattr(second, "words")
        first.answers[0].set_result(None)
        assert await opening is first
        await until(lambda: len(first.answers) == 2)
        first.answers[1].set_result(None)
        assert await joining is first
        assert exchange.pipes == [pipe]


async def test_lost_at_the_other_end_alone() -> None:
    """Where only the other end had lost a pipe it is told how far messages were sent: it waits for none that do not come."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        trunk = far(wiring)
        await attach(Join(exchange, "Q"), trunk, None)
        await exchange.send_many([b"x"] * 5)
        exchange.stage_out()
        trunk.answer |= {"expected": 0, "taken": 0}
        await attach(Join(exchange, "Q"), trunk, None)
        assert trunk.sent[-1] == (5, 3, [])
