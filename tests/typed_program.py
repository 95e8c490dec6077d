"""A program that mypy checks with the tests: right options and results pass, and wrong ones are seen.

Each line of `wrong` is an error, or mypy complains of the comment that silences it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import closing
from typing import Any, Protocol, assert_type

import redpoll
from redpoll import Message, Node, Received
from redpoll.blocking import PoolNode, QueueNode, connect
from redpoll.blocking import Received as ThreadsReceived
from redpoll.bus.threads import BlockingClient
from redpoll.testing import AppFactory, BusFactory, Certificates, FaultsFactory, NodeFactory, NodesFactory

Numbers = dict[str, int]


class Interface(Protocol):
    async def add(self, a: int, b: int = 1) -> int: ...

    def primes(self, below: int) -> AsyncIterator[int]: ...


async def handle(message: Received[Numbers]) -> Numbers:
    return message.data


def work(message: ThreadsReceived[bytes]) -> bytes:
    return message.data


async def right() -> None:
    async with Node(handle, port=0, slots=4, serializer="json", timeout=None) as node:
        assert_type(node, Node[Numbers])
        assert_type((await node.request(Message({}, node.address))).data, Numbers)
        assert_type(node.send(Message({})), asyncio.Future[None])
    async with redpoll.connect("memory://") as bus:
        typed = bus.rpc.client("calculator", Interface, timeout=3)
        assert_type(await typed.add(1, b=2), int)
        async for each in typed.primes(3):
            assert_type(each, int)


def threads() -> None:
    with PoolNode(work, port=0, max_workers=2) as pool, QueueNode[bytes](port=0, window=8) as queue:
        assert_type(queue.get().data, bytes)
        assert_type(queue.send(Message(b"", pool.address)), Future[None])
    with connect("memory://") as bus:
        assert_type(bus.rpc.client("calculator", timeout=3), BlockingClient)
        assert_type(bus.queues.names(), list[str])
        assert_type(bus.tasks.submit(1, priority=2).id, str)
        with bus.tasks.next("night") as task:
            assert_type(task.attempt, int)
        with closing(bus.tasks.map([1], queue="night", timeout=3)) as results:
            assert_type(next(results), Any)


async def fixtures(
    nodes: NodesFactory, node: NodeFactory, faults: FaultsFactory, bus: BusFactory, app: AppFactory, pki: Certificates
) -> None:
    async with nodes(2, slots=3) as several, node(port=0) as one, faults(one) as proxy, bus() as made:
        assert_type(several, tuple[Node[Any], ...])
        await made.tasks.run(proxy.address, queue=pki.issue("x").name, declare=False)
    async with app(redpoll.App("memory://")) as running:
        await running.drain()


async def wrong() -> None:
    Node(handle, solts=4)  # type: ignore[call-arg]
    Node(handle, port="2998")  # type: ignore[arg-type]
    QueueNode[bytes](window="8")  # type: ignore[arg-type]
    PoolNode(work, max_worker=3)  # type: ignore[call-arg]
    bus = redpoll.connect("memory://")
    await bus.tasks.run(1, quene="night")  # type: ignore[call-arg]
    bus.tasks.map([1], dealy=3)  # type: ignore[call-arg]
    bus.rpc.client("calculator", timeot=3)  # type: ignore[call-overload]
    await bus.rpc.client("calculator", Interface).add("1")  # type: ignore[arg-type]
