"""What a node says that was not started, was stopped, or was dropped."""

from __future__ import annotations

import gc
import warnings

import pytest

import redpoll
from redpoll import (
    UsageError,
)
from tests.node.support import (
    make,
    not_running,
)


@pytest.mark.asyncio
async def test_before_start_and_after_stop() -> None:
    """A node that was not started, or has stopped, sends and receives nothing, and still can be looked at."""
    node = make()
    await not_running(node)
    assert (node.listening, node.peers, node.stats().sent) == ((), (), 0)
    await node.start()
    await node.stop()
    await not_running(node)
    assert (node.listening, node.peers, node.stats().connections) == ((), (), 0)


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
