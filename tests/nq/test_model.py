"""A server and two clients that do whatever they like, over links that break, against what each future says."""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from redpoll import QueueFull, nq
from redpoll.testing import FaultProxy
from tests.blocking.support import PATIENCE
from tests.conftest import LOOPS
from tests.nq.support import options
from tests.ports import free_port

NAMES = ("server", "first", "second")

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(NAMES), st.sampled_from((0, 10, 5000, 70_000))),
        st.tuples(st.just("put for"), st.sampled_from(NAMES[1:]), st.sampled_from((0, 5000))),
        st.tuples(st.just("cancel"), st.sampled_from(NAMES), st.integers(0, 5)),
        st.tuples(st.just("get"), st.sampled_from(NAMES), st.integers(1, 4)),
        st.tuples(st.just("turns"), st.just("server"), st.integers(1, 30)),
        st.tuples(st.just("cut"), st.just("server"), st.just(0)),
        st.tuples(st.just("close"), st.sampled_from(NAMES[1:]), st.booleans()),
        st.tuples(st.just("send away"), st.sampled_from(NAMES[1:]), st.booleans()),
        st.tuples(st.just("come"), st.sampled_from(NAMES[1:]), st.just(0)),
    ),
    max_size=40,
)


@dataclass
class Put:
    """One copy of a put.

    Attributes:
        sender: Who put it.
        receiver: Whom it is for; None for the server.
        number: Its place among those of its sender.
        future: How it ended.
    """

    sender: uuid.UUID
    receiver: uuid.UUID
    number: int
    future: Any


@dataclass
class Play:
    """Who is there, and what was put and got."""

    given: dict[str, Any]
    ends: dict[str, nq.aio.Communicator] = field(default_factory=dict)
    puts: list[Put] = field(default_factory=list)
    got: dict[tuple[uuid.UUID, uuid.UUID], list[int]] = field(default_factory=lambda: defaultdict(list))
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    number: int = 0

    def put(self, name: str, size: int, *peers: uuid.UUID) -> None:
        """Put for all, or for some."""
        end = self.ends.get(name)
        if end is None:
            return
        self.number += 1
        whole = end.put((self.number, bytes(size)), *peers)
        for peer, future in whole.peers.items():
            self.puts.append(Put(end.id, peer, self.number, future))

    async def get(self, end: nq.aio.Communicator, count: int) -> None:
        """Get what is there."""
        for _ in range(count):
            try:
                message = await end.get(timeout=0)
            except (TimeoutError, ConnectionError):
                return
            self.got[message.peer, end.id].append(message.data[0])

    async def get_all(self, end: nq.aio.Communicator) -> None:
        """Get what comes, to the end."""
        try:
            while True:
                message = await end.get()
                self.got[message.peer, end.id].append(message.data[0])
        except ConnectionAbortedError:
            return

    async def close(self, end: nq.aio.Communicator, flush: bool) -> None:
        """Close, and get what came."""
        await end.close(PATIENCE, flush)
        await self.get(end, 10_000)

    async def play(self, steps: list[tuple[str, str, Any]]) -> None:
        """Do the steps, close all, and see what became of each put."""
        place = nq.NetworkLocation("127.0.0.1", free_port())
        server = self.ends["server"] = nq.aio.new("tcp", "server", options(place, **self.given))
        await server.start()
        async with FaultProxy(f"127.0.0.1:{place.port}") as proxy:
            there = nq.NetworkLocation("127.0.0.1", proxy.address.port)
            for step, name, value in steps:
                end = self.ends.get(name)
                if step == "put":
                    self.put(name, value)
                elif step == "put for" and end is not None:
                    self.put("server", value, end.id)
                elif step == "cancel" and end is not None:
                    mine = [put for put in self.puts if put.sender == end.id and not put.future.done()]
                    for put in mine[value : value + 1]:
                        put.future.cancel()
                elif step == "get" and end is not None:
                    await self.get(end, value)
                elif step == "turns":
                    for _ in range(value):
                        await asyncio.sleep(0)
                elif step == "cut":
                    proxy.cut()
                elif step == "close" and end is not None:
                    del self.ends[name]
                    self.tasks.append(asyncio.create_task(self.close(end, value)))
                elif step == "send away" and end is not None:
                    server.disconnect(end.id, value)
                elif step == "come" and end is None:
                    new = self.ends[name] = nq.aio.new("tcp", "client", options(there, **self.given))
                    await new.start()
            clients = [end for name, end in self.ends.items() if name != "server"]
            async with asyncio.timeout(3 * PATIENCE):
                # What is confirmed by get waits for somebody that gets.
                getting = asyncio.create_task(self.get_all(server))
                await asyncio.gather(*self.tasks, *(self.close(each, True) for each in clients))
                await self.close(server, True)
                await getting
        self.judge()

    def judge(self) -> None:
        """Each put ended, and as the receiving side says; order holds for each pair, and nothing came twice."""
        for numbers in self.got.values():
            assert numbers == sorted(set(numbers))
        for put in self.puts:
            assert put.future.done()
            arrived = any(
                put.number in numbers
                for (sender, receiver), numbers in self.got.items()
                if sender == put.sender and put.receiver in {receiver, put.sender}
            )
            if put.future.cancelled():
                continue
            error = put.future.exception()
            if error is None:
                assert arrived, f"{put} was confirmed and did not arrive"
            else:
                assert isinstance(error, (ConnectionError, QueueFull)), error
                if isinstance(error, QueueFull):
                    assert not arrived, f"{put} arrived and was said to be dropped"


@settings(max_examples=60)
@given(
    STEPS,
    st.sampled_from(
        [
            {},
            {"confirm": "get"},
            {"transport_size": 4096},
            {"queue_size": 3},
            {"queue_size": 3, "full": "drop"},
            {"queue_bytes": 6000, "full": "drop", "drop_oldest": False},
        ]
    ),
    st.sampled_from(list(LOOPS.values())),
)
def test_each_future_is_true(steps: list[tuple[str, str, Any]], given: dict[str, Any], loop: Any) -> None:
    """Whatever three ends put, get, cancel and close: each put ends as the receiving side says, once and in order."""
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(Play({"resume": 2.0, "keepalive": 0.3, **given}).play(steps))
