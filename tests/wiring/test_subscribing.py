"""Subscriptions of queues to an exchange."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import AsyncMock

import pytest

from redpoll import Wiring
from redpoll.errors import PeerLost, ProtocolError, UnknownName, WiringError
from redpoll.wiring import AtLimit, Limits, Style, bindings
from redpoll.wiring.connection import NO_MESSAGES, LocalConnection, Subscription
from redpoll.wiring.protocol import Batch
from redpoll.wiring.subscribing import attach, leave
from tests.wiring.support import until

pytestmark = pytest.mark.asyncio


class Far(LocalConnection):
    """A connection whose other end is this test."""

    answer: dict[str, Any]

    async def ask(self, word: dict[str, Any], timeout: float | None) -> dict[str, Any]:
        self.words = [*getattr(self, "words", []), word]
        return dict(self.answer)

    def tell(self, word: dict[str, Any]) -> None:
        self.words = [*getattr(self, "words", []), word]

    def send_data(self, pipe: Any, first: int, batch: Batch = NO_MESSAGES) -> None:
        self.sent = [*getattr(self, "sent", []), (first, batch.messages)]


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
    """A connection that does."""
    connection = Slow(wiring._board, b"i", b"1")
    connection.answer = {"messages": 3, "bytes": None}
    return connection


def far(wiring: Wiring, run: bytes = b"1", **answer: Any) -> Far:
    """A connection that answers so."""
    connection = Far(wiring._board, b"i", run)
    connection.answer = {"messages": 3, "bytes": None, **answer}
    return connection


def numbers(connection: Far) -> tuple[int, int, int]:
    """What it was told last of where a queue joins."""
    last = connection.words[-1]
    return last["first"], last["at"], last["missed"]


async def test_first_and_second() -> None:
    """The first queue joins before the first message; the second one behind what was sent, by the same pipe."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        connection = far(wiring)
        await attach(Subscription(exchange, "1"), connection, None)
        assert numbers(connection) == (0, 0, 0)
        await exchange.send_many([b"x"] * 5)
        exchange.stage_out()
        await attach(Subscription(exchange, "2"), connection, None)
        assert numbers(connection) == (3, 5, 0)
        assert len(exchange.pipes) == len(connection.pipes) == 1
        assert [each for _, each in connection.sent] == [[b"x"]] * 3
        await wiring.close(linger=0)


async def test_balance() -> None:
    """A balancing exchange has a pipe for each queue."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E", style=Style.BALANCE)
        connection = far(wiring)
        for name in ("1", "2"):
            await attach(Subscription(exchange, name), connection, None)
        assert len(exchange.pipes) == 2


@pytest.mark.parametrize("style", Style)
@pytest.mark.parametrize("at_once", [False, True])
async def test_bound_twice(style: Style, at_once: bool) -> None:
    """A queue that two have bound has one pipe, until both have unbound it."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E", style=style)
        connection = far(wiring)
        one, two = Subscription(exchange, "Q"), Subscription(exchange, "Q")
        if at_once:
            await asyncio.gather(*(attach(each, connection, None) for each in (one, two)))
        else:
            await attach(one, connection, None)
            await attach(two, connection, None)
        (pipe,) = exchange.pipes
        assert one.pipe is two.pipe is pipe
        leave(one)
        assert exchange.pipes == [pipe]
        assert connection.words[-1]["word"] == "open"
        leave(two)
        assert not exchange.pipes
        assert not connection.pipes


@pytest.mark.parametrize("style", Style)
async def test_unbound_while_bound(style: Style) -> None:
    """A queue that one unbinds while another one binds it stays bound, by the pipe that it has."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E", style=style)
        connection = slow(wiring)
        one, two = Subscription(exchange, "Q"), Subscription(exchange, "Q")
        await attach(one, connection, None)
        (pipe,) = exchange.pipes
        connection.hold()
        task = asyncio.create_task(attach(two, connection, None))
        await until(lambda: connection.answers)
        leave(one)
        connection.answers[0].set_result(None)
        await task
        assert exchange.pipes == [pipe]
        assert not pipe.ending
        assert not [word for word in connection.words if word["word"] != "open"]
        leave(two)
        assert not exchange.pipes


@pytest.mark.parametrize("style", Style)
async def test_unbound_while_not_bound(style: Style) -> None:
    """A pipe ends with its last binding also where another one of the same queue was being made, and is not."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E", style=style)
        connection = slow(wiring)
        one, two = Subscription(exchange, "Q"), Subscription(exchange, "Q")
        await attach(one, connection, None)
        connection.hold()
        task = asyncio.create_task(attach(two, connection, None))
        await until(lambda: connection.answers)
        leave(one)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert [word["word"] for word in connection.words] == ["open", "open", "close", "end"]
        assert not exchange.pipes
        assert not connection.pipes


async def test_given_up_beside_another() -> None:
    """A queue whose binding is given up leaves a pipe that is opened for another one meanwhile."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        connection = slow(wiring)
        connection.hold()
        one, two = (asyncio.create_task(attach(Subscription(exchange, name), connection, None)) for name in ("1", "2"))
        await until(lambda: len(connection.answers) == 2)
        one.cancel()
        await asyncio.gather(one, return_exceptions=True)
        assert connection.words[-1] == {"word": "close", "pipe": connection.words[0]["pipe"], "queue": "1", "at": 0}
        connection.answers[1].set_result(None)
        await two
        (pipe,) = exchange.pipes
        assert list(pipe.subscriptions) == ["2"]


async def test_last_leaves_while_another_joins() -> None:
    """A pipe whose last queue leaves goes on if it is being opened for another one."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        connection = slow(wiring)
        one = Subscription(exchange, "1")
        await attach(one, connection, None)
        connection.hold()
        task = asyncio.create_task(attach(Subscription(exchange, "2"), connection, None))
        await until(lambda: connection.answers)
        leave(one)
        assert connection.words[-1]["word"] == "close"
        connection.answers[0].set_result(None)
        await task
        (pipe,) = exchange.pipes
        assert list(pipe.subscriptions) == ["2"]
        assert not pipe.ending


async def test_taken_away_while_bound() -> None:
    """A queue that its owner takes away while one more binds it is not bound."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        connection = slow(wiring)
        await attach(Subscription(exchange, "Q"), connection, None)
        (pipe,) = exchange.pipes
        connection.hold()
        task = asyncio.create_task(attach(Subscription(exchange, "Q"), connection, None))
        await until(lambda: connection.answers)
        wiring._board.hear(connection, {"word": "gone", "pipe": pipe.number, "queue": "Q", "taken": 0})
        connection.answers[0].set_result(None)
        with pytest.raises(UnknownName):
            await task
        assert not exchange.pipes
        assert not connection.pipes


async def test_back() -> None:
    """The same run is told where the pipe goes on; another one what it misses, and gets what waited."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E", limits=Limits(messages=4))
        subscription = Subscription(exchange, "Q")
        connection = far(wiring)
        await attach(subscription, connection, None)
        await exchange.send_many([b"x"] * 5)
        exchange.stage_out()
        exchange.pipes[0].credited(1)
        connection.lose(PeerLost(None, ""), final=False)
        same = far(wiring, expected=4, taken=2)
        await attach(subscription, same, None)
        assert numbers(same) == (4, 4, 3)
        assert same.sent[0] == (4, [])
        assert same.sent[1] == (4, [b"x"])
        same.lose(PeerLost(None, ""), final=False)
        other = far(wiring, b"2")
        await attach(subscription, other, None)
        assert numbers(other) == (5, 5, 3)
        assert exchange.pipes[0].taken == 5


async def test_dropped_while_lost() -> None:
    """What was dropped while there was no other end is told as missing, too."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E", limits=Limits(messages=2), at_limit=AtLimit.DROP_OLD)
        subscription = Subscription(exchange, "Q")
        connection = far(wiring)
        await attach(subscription, connection, None)
        connection.lose(PeerLost(None, ""), final=False)
        await exchange.send_many([b"%d" % number for number in range(10)])
        exchange.stage_out()
        again = far(wiring, b"2")
        await attach(subscription, again, None)
        first, at, missed = numbers(again)
        # Nothing before 8 comes any more: the numbers say so.
        assert (first, at, missed) == (0, 0, 0)
        assert again.sent == [(8, []), (8, [b"8"]), (9, [b"9"])]


async def test_leaves() -> None:
    """A queue leaves behind what was sent; with the last one the pipe ends when all of that is sent."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        connection = far(wiring)
        subscription = Subscription(exchange, "Q")
        await attach(subscription, connection, None)
        await exchange.send_many([b"x"] * 4)
        (pipe,) = exchange.pipes
        leave(subscription)
        assert connection.words[-1] == {"word": "close", "pipe": pipe.number, "queue": "Q", "at": 4}
        assert not exchange.pipes
        assert connection.pipes
        pipe.credited(3)
        assert connection.words[-1] == {"word": "end", "pipe": pipe.number}
        assert not connection.pipes
        leave(subscription)
        assert connection.words[-1] == {"word": "end", "pipe": pipe.number}


@pytest.mark.parametrize(
    "answer",
    [
        {"elsewhere": []},
        {"elsewhere": True},
        {"messages": 0},
        {"bytes": "many"},
        {"error": "WiringError", "arguments": ["no"]},
    ],
)
async def test_bad_answers(answer: dict[str, Any]) -> None:
    """An answer that makes no sense, or says no, leaves nothing behind."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        connection = far(wiring, **answer)
        with pytest.raises((ProtocolError, WiringError)):
            await attach(Subscription(exchange, "Q"), connection, None)
        assert not exchange.pipes
        assert not connection.pipes


@pytest.mark.parametrize("style", Style)
async def test_two_connections_to_one(style: Style) -> None:
    """Where the other end of a second connection has a pipe by the first one, a queue joins that; else by its own."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E", style=style)
        first, second, stranger = far(wiring), far(wiring), far(wiring)
        one, two, three = (Subscription(exchange, "Q") for _ in range(3))
        assert await attach(one, first, None) is first
        (pipe,) = exchange.pipes
        second.answer = {"elsewhere": pipe.number}
        assert await attach(two, second, None) is first
        assert exchange.pipes == [pipe]
        assert not second.pipes
        assert one.up
        assert two.up
        assert await attach(three, stranger, None) is stranger
        assert len(exchange.pipes) == 2


@pytest.mark.parametrize("style", Style)
async def test_a_lost_pipe_is_opened_by_another_connection(style: Style) -> None:
    """A queue joins a lost pipe that led to the same wiring: what waits in that would arrive twice beside a new one."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E", style=style)
        first, second, stranger = far(wiring), far(wiring), Far(wiring._board, b"j", b"1")
        stranger.answer = second.answer
        await attach(Subscription(exchange, "Q"), first, None)
        (pipe,) = exchange.pipes
        first.lose(PeerLost(None, ""), final=False)
        await attach(Subscription(exchange, "Q"), stranger, None)
        second.answer = {**second.answer, "expected": 0, "taken": 0}
        assert await attach(Subscription(exchange, "Q"), second, None) is second
        assert second.words[0]["pipe"] == pipe.number
        assert pipe.connection is second
        assert len(exchange.pipes) == 2


@pytest.mark.parametrize("style", Style)
async def test_lost_at_the_other_end_of_another_connection(style: Style) -> None:
    """A pipe that the other end has lost with its connection is opened again by the connection over which that was said."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E", style=style)
        first, second = far(wiring), slow(wiring)
        await attach(Subscription(exchange, "Q"), first, None)
        (pipe,) = exchange.pipes
        second.hold()
        second.answer |= {"elsewhere": pipe.number, "lost": True}
        joining = asyncio.ensure_future(attach(Subscription(exchange, "Q"), second, None))
        await until(lambda: second.answers)
        second.answer = {"messages": 3, "bytes": None, "expected": 0, "taken": 0}
        second.answers[0].set_result(None)
        await until(lambda: len(second.answers) == 2)
        second.answers[1].set_result(None)
        assert await joining is second
        assert not first.up
        assert exchange.pipes == [pipe]
        assert pipe.connection is second


async def test_two_at_once_by_a_second_connection() -> None:
    """Where two queues join by a second connection, and the first is lost meanwhile, both are attached to the lost pipe."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        first, second = far(wiring), slow(wiring)
        await attach(Subscription(exchange, "Q"), first, None)
        (pipe,) = exchange.pipes
        second.hold()
        second.answer |= {"elsewhere": pipe.number, "lost": False}
        joining = [asyncio.ensure_future(attach(Subscription(exchange, "Q"), second, None)) for _ in range(2)]
        await until(lambda: len(second.answers) == 2)
        first.lose(PeerLost(None, ""), final=False)
        second.answer = {"messages": 3, "bytes": None, "expected": 0, "taken": 0}
        for number in range(4):
            await until(lambda number=number: len(second.answers) > number)  # type: ignore[misc]
            second.answers[number].set_result(None)
        assert await asyncio.gather(*joining) == [second, second]
        assert exchange.pipes == [pipe]
        assert pipe.connection is second


@pytest.mark.parametrize(("identity", "run"), [(b"j", b"1"), (b"i", b"2")])
async def test_another_wiring_is_not_believed(identity: bytes, run: bytes) -> None:
    """Only a wiring that says to be the same run of the same one attaches a queue to a pipe of another connection."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        await attach(Subscription(exchange, "Q"), far(wiring), None)
        (pipe,) = exchange.pipes
        other = Far(wiring._board, identity, run)
        other.answer = {"elsewhere": pipe.number}
        with pytest.raises(WiringError, match="'Q' has another pipe"):
            await attach(Subscription(exchange, "Q"), other, None)
        assert exchange.pipes == [pipe]
        assert not other.pipes


@pytest.mark.parametrize("lost", [False, True])
async def test_elsewhere_again_and_again(lost: bool) -> None:
    """An end that names another pipe each time that it is asked is asked twice."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        first, second = far(wiring), far(wiring)
        subscription = Subscription(exchange, "Q")
        await attach(subscription, first, None)
        first.answer = second.answer = {"elsewhere": exchange.pipes[0].number, "lost": lost}
        with pytest.raises(WiringError, match="'Q' has another pipe"):
            await attach(Subscription(exchange, "Q"), second, None)
        assert [word["word"] for word in (*first.words[1:], *second.words)].count("open") == 2


async def test_a_pipe_that_has_ended_here() -> None:
    """The other end is told to end a pipe that is not known, once; then the queue is attached by a new one."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        connection = slow(wiring)
        connection.hold()
        connection.answer = {"elsewhere": 99}
        joining = asyncio.ensure_future(attach(Subscription(exchange, "Q"), connection, None))
        await until(lambda: connection.answers)
        connection.answer = {"messages": 3, "bytes": None}
        connection.answers[0].set_result(None)
        await until(lambda: len(connection.answers) == 2)
        connection.answers[1].set_result(None)
        assert await joining is connection
        words = [(word["word"], word["pipe"]) for word in connection.words]
        (pipe,) = exchange.pipes
        assert words == [("open", pipe.number - 1), ("end", pipe.number - 1), ("end", 99), ("open", pipe.number)]


async def test_two_connections_at_once() -> None:
    """A queue joins over a second connection the pipe that is being opened over the first."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        first, second = slow(wiring), far(wiring)
        first.hold()
        opening = asyncio.ensure_future(attach(Subscription(exchange, "Q"), first, None))
        await until(lambda: first.answers)
        second.answer = {"elsewhere": first.words[0]["pipe"], "lost": False}
        joining = asyncio.ensure_future(attach(Subscription(exchange, "Q"), second, None))
        for number in range(2):
            await until(lambda number=number: len(first.answers) > number)  # type: ignore[misc]
            first.answers[number].set_result(None)
        assert await opening is await joining is first
        assert len(exchange.pipes) == 1


@pytest.mark.parametrize("lost", [False, True])
async def test_lost_at_the_other_end_alone(lost: bool) -> None:
    """Where only the other end had lost a pipe, what did not arrive there is unconfirmed, also if this end loses it too."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E", limits=Limits(messages=10))
        connection, later = slow(wiring), far(wiring)
        subscription = Subscription(exchange, "Q")
        await attach(subscription, connection, None)
        (pipe,) = exchange.pipes
        await exchange.send_many([b"x"] * 3)
        exchange.stage_out()
        connection.hold()
        connection.answer |= {"expected": 1, "taken": 1}
        opening = asyncio.ensure_future(attach(Subscription(exchange, "Q"), connection, None))
        await until(lambda: connection.answers)
        if lost:
            connection.lose(PeerLost(None, ""), final=False)
        connection.answers[0].set_result(None)
        if lost:
            with pytest.raises(WiringError):
                await opening
            later.answer |= {"expected": 3, "taken": 3}
            await attach(subscription, later, None)
        else:
            await opening
            assert connection.sent[-1] == (3, [])
        assert exchange.stats.unconfirmed == 2
        pipe.credited(3)
        assert exchange.stats.unconfirmed == 2


def bind(attempt: int) -> dict[str, Any]:
    """A word that requests a binding."""
    names = {"exchange": "E", "queue": "Q"}
    return {"word": "bind", **names, "here": True, "is_global": True, "attempt": attempt}


async def test_requested_over_either_connection() -> None:
    """What another wiring requests over two connections is one request, which ends over either of them."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        first, second = far(wiring), far(wiring)
        for connection, attempt in ((first, 1), (second, 3), (first, 2)):
            answer: Any = wiring._board.hear(connection, bind(attempt))
            assert await answer == {"owner": b"i"}
        (subscription,) = first.subscriptions.values()
        assert subscription.attempt == 3
        assert not second.subscriptions
        wiring._board.hear(second, {"word": "unbind", "exchange": "E", "queue": "Q"})
        assert not first.subscriptions
        assert not exchange.pipes


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
async def test_a_late_end_of_an_earlier_request(order: tuple[int, int]) -> None:
    """What ends an earlier request keeps what was requested again over another connection, whichever came first."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        connections = {1: far(wiring), 2: far(wiring)}
        end = {"word": "unbind", "exchange": "E", "queue": "Q"}
        for attempt in order:
            answer: Any = wiring._board.hear(connections[attempt], bind(attempt))
            await answer
        wiring._board.hear(connections[1], end | {"attempt": 1})
        (pipe,) = exchange.pipes
        (subscription,) = pipe.bound
        assert subscription.up
        wiring._board.hear(connections[2], end | {"attempt": 2})
        assert not exchange.pipes


@pytest.mark.parametrize("up", [False, True])
async def test_the_end_of_a_request_has_its_number(up: bool) -> None:
    """A wiring that ends what it requested says which request that was: one that is done, or one that has no answer."""
    async with Wiring() as wiring:
        connection = slow(wiring)
        connection.answer = {"owner": b"i"}
        if not up:
            connection.hold()
        wiring._bindings._resolver.find = AsyncMock(return_value=connection)  # type: ignore[method-assign]
        await wiring.create_queue("Q")
        binding = asyncio.ensure_future(wiring.bind("E", "Q"))
        await until(lambda: binding.done() if up else hasattr(connection, "words"))
        await wiring.unbind("E", "Q")
        await asyncio.gather(binding, return_exceptions=True)
        first, last = connection.words
        assert (first["word"], last["word"]) == ("bind", "unbind")
        assert last["attempt"] == first["attempt"] > 0


async def test_a_request_that_is_lost_here_ends_over_another_connection() -> None:
    """A wiring ends what it requested also where the connection of the request was lost at the exchange's end."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        first, second = far(wiring), far(wiring)
        answer: Any = wiring._board.hear(first, bind(1))
        await answer
        first.lose(PeerLost(None, ""), final=False)
        assert exchange.pipes
        wiring._board.hear(second, {"word": "unbind", "exchange": "E", "queue": "Q"})
        assert not exchange.pipes


async def test_news_of_a_request() -> None:
    """The end of what another wiring requested is told over each connection to it, with the number of the request."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        first, second, stranger = far(wiring), far(wiring), far(wiring, b"2")
        answer: Any = wiring._board.hear(first, bind(7))
        await answer
        await exchange.delete()
        for connection in (first, second):
            word = connection.words[-1]
            assert (word["word"], word["attempt"], word["error"]) == ("unwired", 7, "UnknownName")
        assert not hasattr(stranger, "words")


async def test_a_lost_request_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request whose connection was lost here ends after a time, and its wiring is told over any connection that it has."""
    monkeypatch.setattr(bindings, "KEPT", 0.01)
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        first = far(wiring)
        answer: Any = wiring._board.hear(first, bind(7))
        await answer
        first.lose(PeerLost(None, "gone"), final=False)
        assert exchange.pipes
        second = far(wiring)
        await until(lambda: not exchange.pipes)
        end, word = second.words
        assert end == {"word": "end", "pipe": 1}
        assert (word["word"], word["attempt"], word["arguments"]) == ("unwired", 7, ["lost the peer: gone"])


async def test_a_request_of_a_former_run_ends_with_its_connection() -> None:
    """What a wiring has requested again, since it was started again, ends with the connection of its former run."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        first, second = far(wiring, b"1"), far(wiring, b"2")
        for connection in (first, second):
            answer: Any = wiring._board.hear(connection, bind(1))
            assert await answer == {"owner": b"i"}
        first.lose(PeerLost(None, "no other link was made"), final=False)
        (pipe,) = exchange.pipes
        assert pipe.connection is second
        wiring._board.hear(second, {"word": "unbind", "exchange": "E", "queue": "Q"})
        assert not exchange.pipes


@pytest.mark.parametrize("final", [False, True])
async def test_a_later_run_has_another_pipe(final: bool) -> None:
    """What arrived by the pipe of a queue whose owner was started again does not arrive by the one that it had before."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        first, second, third = (far(wiring, run) for run in (b"1", b"2", b"3"))
        own, requested = Subscription(exchange, "Q"), Subscription(exchange, "Q")
        await attach(own, first, None)
        first.lose(PeerLost(None, ""), final=final)
        await attach(requested, second, None)
        await exchange.send(b"x")
        exchange.stage_out()
        assert second.sent == [(0, [b"x"])]
        second.lose(PeerLost(None, ""), final=final)
        leave(requested)
        await exchange.send(b"y")
        exchange.stage_out()
        await attach(own, third, None)
        assert [each for _, each in third.sent] == [[b"y"]]
        assert numbers(third) == (1, 1, 1)
        assert len(exchange.pipes) == 1


@pytest.mark.parametrize("ends", ["unbound", "deleted"])
async def test_ends_while_it_is_opened_again(ends: str) -> None:
    """A lost pipe that is over while it is opened again is closed at the other end, which may have opened it."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        first, second = far(wiring), slow(wiring)
        subscription = Subscription(exchange, "Q")
        await attach(subscription, first, None)
        first.lose(PeerLost(None, ""), final=False)
        second.hold()
        opening = asyncio.ensure_future(attach(subscription, second, None))
        await until(lambda: second.answers)
        if ends == "unbound":
            opening.cancel()
            leave(subscription)
        else:
            await exchange.delete()
            second.answers[0].set_result(None)
        with pytest.raises(asyncio.CancelledError if ends == "unbound" else WiringError):
            await opening
        assert [word["word"] for word in second.words] == ["open", "end"]
        assert not exchange.pipes


@pytest.mark.parametrize("back", ["", "1", "2"])
async def test_the_end_of_a_pipe_is_kept_for_its_run(back: str) -> None:
    """The end of a lost pipe is told the run that had it, and forgotten with another run of its wiring."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        subscription = Subscription(exchange, "Q")
        first = far(wiring)
        await attach(subscription, first, None)
        first.lose(PeerLost(None, ""), final=not back)
        leave(subscription)
        assert len(wiring._board.ended) == bool(back)
        if back:
            again = far(wiring, back.encode())
            again.tell_ended()
            assert getattr(again, "words", []) == [{"word": "end", "pipe": 1}] * (back == "1")
        assert not wiring._board.ended


async def test_another_queue_opens_a_lost_pipe() -> None:
    """Messages that wait in a lost pipe are for the queues that had it, and not for one that is bound after them."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        first, second = far(wiring), far(wiring)
        await attach(Subscription(exchange, "Q"), first, None)
        (pipe,) = exchange.pipes
        first.lose(PeerLost(None, ""), final=False)
        await exchange.send(b"Q's alone")
        exchange.stage_out()
        await attach(Subscription(exchange, "R"), second, None, pipe)
        assert numbers(second) == (0, 1, 0)


async def shared(wiring: Wiring) -> tuple[Any, Any, tuple[Subscription, Subscription]]:
    """An exchange with one lost pipe to two queues, Q and R, another connection to their owner, and their subscriptions."""
    exchange = await wiring.create_exchange("E")
    former, later = far(wiring), far(wiring)
    subscriptions = Subscription(exchange, "Q"), Subscription(exchange, "R")
    for each in subscriptions:
        await attach(each, former, None)
    former.lose(PeerLost(None, ""), final=False)
    return exchange, later, subscriptions


@pytest.mark.parametrize("first", ["unbound", "opened for another"])
async def test_unbound_while_it_is_lost(first: str) -> None:
    """A queue that leaves a pipe while that is lost, or opened for others alone, is taken out of it."""
    async with Wiring() as wiring:
        exchange, later, (left, stays) = await shared(wiring)
        (pipe,) = exchange.pipes
        await exchange.send(b"both")
        exchange.stage_out()
        if first == "unbound":
            leave(left)
            await attach(stays, later, None)
        else:
            await attach(stays, later, None)
            leave(left)
        close = {"word": "close", "pipe": pipe.number, "queue": "Q", "at": 1}
        assert [word for word in later.words if word["word"] == "close"] == [close]


@pytest.mark.parametrize("waits", [False, True])
async def test_bound_again_while_it_is_lost(waits: bool) -> None:
    """A queue that leaves a lost pipe and comes back is out of it in between, unless earlier messages still wait for it."""
    async with Wiring() as wiring:
        exchange, later, (left, _) = await shared(wiring)
        (pipe,) = exchange.pipes
        if waits:
            await exchange.send(b"both")
            exchange.stage_out()
        leave(left)
        await exchange.send(b"R's alone")
        exchange.stage_out()
        # The other end of a queue that still awaits messages has it in this pipe.
        await attach(Subscription(exchange, "Q"), later, None, pipe)
        first = {"word": "close", "pipe": pipe.number, "queue": "Q", "at": 0}
        assert [word for word in later.words if word["word"] == "close"] == ([] if waits else [first])
        assert waits or later.words.index(first) == 0
