"""What a node says that was not started, was stopped, or was dropped."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import redpoll
from redpoll import Message, Node, UsageError
from tests.node.support import make, not_running, to, within


@pytest.mark.asyncio
async def test_before_start_and_after_stop() -> None:
    """A node that was not started, or has stopped, sends and receives nothing, and still can be looked at."""
    node = make()
    await not_running(node, "start it first: async with node, or await node.start()")
    assert (node.listening, node.peers, node.stats().sent) == ((), (), 0)
    await node.start()
    await node.stop()
    await not_running(node, "a node can be started only once: create another")
    assert (node.listening, node.peers, node.stats().connections) == ((), (), 0)


_ELSEWHERE = "(create it inside the asyncio.run() that uses it; for threads use redpoll.blocking.QueueNode)"


async def _refuses_all(node: Node[Any], text: str) -> None:
    message = Message(b"x", "127.0.0.1:2998")
    calls: list[Callable[[], Any]] = [
        lambda: node.send(message),
        lambda: node.request(message),
        lambda: node.send_many([message]),
        lambda: node.ready("127.0.0.1:2998"),
        lambda: node.check("127.0.0.1:2998"),
        node.receive,
        lambda: node.take().__aenter__(),
        lambda: aiter(node),
        node.batches,
        node.serve_forever,
        node.stop,
    ]
    for call in calls:
        with pytest.raises(UsageError) as caught:
            await call()
        assert str(caught.value) == f"this node was started on another {text} {_ELSEWHERE}"


@pytest.mark.asyncio
async def test_another_thread() -> None:
    """A node that is used by another thread, with an event loop or without, refuses at once, and goes on."""
    async with make() as node:
        await asyncio.to_thread(asyncio.run, _refuses_all(node, "thread"))

        def plain() -> None:
            with pytest.raises(UsageError, match="this node was started on another thread"):
                node.send(Message(b"x", "127.0.0.1:2998"))

        await asyncio.to_thread(plain)
        assert await node.check(node.address)


def test_another_loop() -> None:
    """A node of an asyncio.run() that is over refuses to be used in the next one."""
    node = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        asyncio.run(node.start())
        asyncio.run(_refuses_all(node, "event loop"))
        del node
        gc.collect()


def test_between_two_runs_of_its_loop() -> None:
    """A send from the node's own thread, while its loop stands, goes out when it runs."""
    with asyncio.Runner() as runner:
        node, server = make(), make(lambda message: None)
        runner.run(server.start())
        runner.run(node.start())
        sending = node.send(to(server))

        async def wait() -> None:
            await within(sending)

        runner.run(wait())
        runner.run(node.stop())
        runner.run(server.stop())


@pytest.mark.asyncio
async def test_stop_of_a_node_never_started() -> None:
    """Stopping a node that was not started is no error; it cannot be started afterwards."""
    node = make()
    await node.stop()
    await node.stop()
    with pytest.raises(UsageError, match="this node is stopped"):
        await node.start()


@pytest.mark.asyncio
async def test_repr() -> None:
    """A node's text names it, its state and where it listens."""
    node = make(host=("127.0.0.1", "::1"), identity=bytes.fromhex("00112233445566778899aabbccddeeff"))
    assert repr(node) == "<Node 00112233 new, not listening>"
    async with node:
        port = node.address.port
        assert repr(node) == f"<Node 00112233 running, 127.0.0.1:{port}, [::1]:{port}>"
    assert repr(node) == "<Node 00112233 stopped, not listening>"


@pytest.mark.asyncio
async def test_dropped_without_stop_warns() -> None:
    """A node that is dropped while it runs says so."""
    node = make(listen=False)
    await node.start()
    text = repr(node)
    del node
    with pytest.warns(ResourceWarning) as caught:
        gc.collect()
    assert [str(warning.message) for warning in caught] == [f"{text} was dropped without being stopped"]


def test_dropped_with_its_loop_warns() -> None:
    """A node that listens, and whose loop ends under it, says so too."""

    async def forget() -> str:
        node = make()
        await node.start()
        return repr(node)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        text = redpoll.run(forget())
        gc.collect()
    assert f"{text} was dropped without being stopped" in [str(warning.message) for warning in caught]


@pytest.mark.asyncio
async def test_stopped_node_does_not_warn() -> None:
    """A node that was stopped is dropped silently; so is one that never ran."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        node = make()
        async with node:
            pass
        other = make()
        del node, other
        gc.collect()
