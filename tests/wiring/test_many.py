"""Many queues, exchanges and bindings: what each costs does not grow with how many there are, and none stops the others."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from redpoll import GLOBAL, Wiring
from redpoll.errors import UnknownName
from redpoll.testing import FaultProxy
from redpoll.wiring import Limits, Style, connection
from redpoll.wiring.directory import desired
from tests.ports import free_port
from tests.wiring.support import PATIENCE, directory, get, until

FEW, MANY = 60, 300


@contextmanager
def counted() -> Iterator[list[int]]:
    """Count the calls of Python code in a block: what is quadratic has many, on however slow a machine."""
    calls = [0]

    def note(_: Any, event: str, __: Any) -> None:
        calls[0] += event == "call"

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


Act = Callable[[Wiring, Wiring, int], Coroutine[Any, Any, None]]


async def bind_queues(near: Wiring, far: Wiring, count: int) -> None:
    """The far one binds its queues to an exchange of the near one."""
    for number in range(count):
        await far.create_queue(f"{number}", limits=Limits(messages=number + 10))
    await near.create_exchange("E", scope=GLOBAL)
    await asyncio.gather(*(far.bind("E", f"{number}", wait=PATIENCE) for number in range(count)))


async def balance_to_queues(near: Wiring, far: Wiring, count: int) -> None:
    """The same, where the exchange balances."""
    await near.create_exchange("E", scope=GLOBAL, style=Style.BALANCE)
    for number in range(count):
        await far.create_queue(f"{number}")
    await asyncio.gather(*(far.bind("E", f"{number}", wait=PATIENCE) for number in range(count)))


async def bind_exchanges(near: Wiring, far: Wiring, count: int) -> None:
    """The near one binds its exchanges to a queue of the far one."""
    await far.create_queue("Q", scope=GLOBAL)
    for number in range(count):
        await near.create_exchange(f"{number}")
    await asyncio.gather(*(near.bind(f"{number}", "Q", wait=PATIENCE) for number in range(count)))


async def make_and_bind(near: Wiring, far: Wiring, count: int) -> None:
    """One queue is made and bound after another, and taken away after another."""
    await near.create_exchange("E", scope=GLOBAL, style=Style.BALANCE)
    queues = []
    for number in range(count):
        queues.append(await far.create_queue(f"{number}"))
        await far.bind("E", f"{number}")
    for queue in queues:
        await far.unbind("E", queue)
        await queue.delete()


async def send_to_queues(near: Wiring, far: Wiring, count: int) -> None:
    """Each of many queues takes its copy of a few messages; then they go one by one."""
    await bind_queues(near, far, count)
    (exchange,) = near.exchanges
    for number in range(5):
        await exchange.send(b"%d" % number)
        assert [await queue.receive(PATIENCE) for queue in far.queues] == [b"%d" % number] * count
    for queue in far.queues:
        await queue.delete()


@pytest.mark.parametrize("process", ["one", "two"])
@pytest.mark.parametrize("act", [bind_queues, balance_to_queues, bind_exchanges, make_and_bind, send_to_queues])
def test_what_one_more_costs(act: Act, process: str, request: pytest.FixtureRequest) -> None:
    """Wiring, using and closing eight times as many costs about eight times as much."""
    if process == "two":
        request.getfixturevalue("apart")

    async def cost(count: int) -> float:
        async with directory() as names:
            with counted() as calls:
                async with Wiring(names.address) as near, Wiring(names.address) as far:
                    await act(near, far, count)
                    await far.close(linger=0)
                    await near.close(linger=0)
            return calls[0] / count

    # What is quadratic costs up to 64 times as much; a busy machine needs some more signs of life.
    assert asyncio.run(cost(8 * FEW)) < 1.5 * asyncio.run(cost(FEW))


@pytest.mark.asyncio
@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("style", Style)
async def test_an_owner_that_is_back(style: Style) -> None:
    """Many queues are wired again to an exchange whose owner was started anew; each gets what is sent then."""
    async with directory() as names, Wiring(names.address) as far:
        ups: list[object] = []
        far.events.pipe_up = ups.append
        for number in range(MANY):
            await far.create_queue(f"{number}")
        for run in (1, 2):
            near = Wiring(names.address)
            await near.start()
            exchange = await near.create_exchange("E", scope=GLOBAL, style=style)
            if run == 1:
                await asyncio.gather(*(far.bind("E", f"{number}", wait=PATIENCE) for number in range(MANY)))
            await until(lambda run=run: len(ups) == run * MANY)  # type: ignore[misc]
            each = 1 if style is Style.DISTRIBUTE else MANY
            await exchange.send_many([b"x"] * each)
            for queue in far.queues:
                assert await queue.receive(PATIENCE) == b"x"
            await near.close(linger=0)


@pytest.mark.asyncio
@pytest.mark.usefixtures("apart")
async def test_wired_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many bindings are wired with another wiring at a time; those that are given up meanwhile take no turn."""
    monkeypatch.setattr(connection, "AT_ONCE", 10)
    async with directory() as names, Wiring(names.address) as near, Wiring(names.address) as far:
        exchange = await near.create_exchange("E", scope=GLOBAL)
        for number in range(100):
            await far.create_queue(f"{number}")
        most = now = 0
        bind = near._board.words["bind"]

        async def bound(*asked: Any) -> Any:
            nonlocal most, now
            now += 1
            most = max(most, now)
            try:
                return await bind(*asked)  # type: ignore[misc]
            finally:
                now -= 1

        near._board.words["bind"] = bound
        binding = [asyncio.ensure_future(far.bind("E", f"{number}", wait=PATIENCE)) for number in range(100)]
        await until(lambda: most == 10)
        for each in binding[70:]:
            each.cancel()
        await asyncio.gather(*binding[:70])
        assert most == 10
        await exchange.send(b"x")
        for queue in far.queues[:70]:
            assert await queue.receive(PATIENCE) == b"x"


@pytest.mark.asyncio
@pytest.mark.usefixtures("apart")
async def test_one_that_does_not_answer() -> None:
    """Many bindings to an owner that is halted do not keep another one from being wired to an owner that is not."""
    port = free_port()
    async with (
        directory() as names,
        FaultProxy(f"127.0.0.1:{port}") as proxy,
        Wiring(names.address, port=port, advertise=str(proxy.address)) as halted,
        Wiring(names.address) as awake,
        Wiring(names.address, bind_timeout=PATIENCE) as wiring,
    ):
        await halted.create_exchange("HALTED", scope=GLOBAL)
        await awake.create_exchange("AWAKE", scope=GLOBAL)
        for number in range(MANY):
            await wiring.create_queue(f"{number}")
        await wiring.bind("HALTED", "0")
        proxy.freeze()
        waiting = [asyncio.ensure_future(wiring.bind("HALTED", f"{number}")) for number in range(1, MANY)]
        assert (await wiring.bind("AWAKE", "0")).state == "up"
        assert not any(each.done() for each in waiting)
        proxy.thaw()
        await asyncio.gather(*waiting)


@pytest.mark.asyncio
@pytest.mark.usefixtures("apart")
async def test_more_names_than_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where bindings that wait have all watches one more is wired nevertheless, and is watched once there is room."""
    monkeypatch.setattr(desired, "MAX_NAMES", 20)
    async with directory() as names, Wiring(names.address) as wiring, Wiring(names.address) as other:
        exchange = await other.create_exchange("E", scope=GLOBAL)
        queue = await wiring.create_queue("Q")
        waiting = [asyncio.ensure_future(wiring.bind(f"{number}", "Q", wait=None)) for number in range(19)]
        late = asyncio.ensure_future(wiring.bind("LATE", "Q", wait=None))
        await until(lambda: len(wiring.bindings) == 20)
        binding = await wiring.bind("E", "Q")
        await exchange.send(b"x")
        assert await get(queue, 1) == [b"x"]
        with pytest.raises(UnknownName):
            await wiring.bind("NONE", "Q", wait=0.01)
        # One that is not watched is looked for.
        await other.create_exchange("LATE", scope=GLOBAL)
        await late
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        # Now the name is watched, and its next owner is found while the former one is there.
        async with Wiring(names.address) as last:
            await exchange.delete()
            await until(lambda: binding.state == "lost")
            exchange = await last.create_exchange("E", scope=GLOBAL)
            await until(lambda: binding.state == "up")
            await exchange.send(b"y")
            assert await get(queue, 1) == [b"y"]
