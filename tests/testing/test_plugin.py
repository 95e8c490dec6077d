"""The factories behind the fixtures."""

from __future__ import annotations

from typing import Any

import pytest

from redpoll import Config, Message, UsageError
from redpoll.testing.plugin import FaultsFactory, Kept, NodeFactory, NodesFactory

pytestmark = pytest.mark.asyncio


async def test_nodes_do_not_meet(redpoll_node: NodeFactory) -> None:
    """Each node has a free port, also with a handler, and also with a Config that names none."""
    async with redpoll_node(lambda _: None) as one, redpoll_node(lambda _: None, Config(slots=2)) as other:
        assert one.address != other.address
        assert 2998 not in {one.address.port, other.address.port}
        assert other.config.slots == 2
    assert redpoll_node(config=Config(port=4000)).config.port == 4000


async def test_nodes_are_linked(redpoll_nodes: NodesFactory) -> None:
    """Each node has a link to each, and its own handler where there is a list of them."""
    async with redpoll_nodes(3, [None, lambda _: b"b", lambda _: b"c"]) as (a, b, c):
        assert [node.stats().connections for node in (a, b, c)] == [2, 2, 2]
        answers = [(await a.request(Message(b"", node.address))).data for node in (b, c)]
        assert answers == [b"b", b"c"]
        assert a.stats().connections == 2


@pytest.mark.parametrize("arguments", [(0,), (True,), (2, [None])], ids=str)
async def test_wrong_counts(redpoll_nodes: NodesFactory, arguments: Any) -> None:
    """A number of nodes that cannot be is refused."""
    with pytest.raises(UsageError):
        redpoll_nodes(*arguments)


async def test_proxy_of_a_node(redpoll_node: NodeFactory, redpoll_faults: FaultsFactory) -> None:
    """A node that is not started yet can be named; where it listens is looked up when the proxy starts."""
    node, client = redpoll_node(lambda message: message.data), redpoll_node()
    proxy = redpoll_faults(node)
    async with node, proxy, client:
        assert (await client.request(Message(b"x", proxy.address))).data == b"x"


async def test_forgotten() -> None:
    """What is open is named and closed once; what was closed or never started is not."""
    kept = Kept(seed=5)
    assert kept.end() is None
    node, proxy = NodeFactory(kept)(listen=False), FaultsFactory(kept)("127.0.0.1:9")
    assert (kept.end(), proxy.seed, kept.remark) == (None, 5, "run it again with the same faults: --redpoll-seed=5")
    await proxy.start()
    text = kept.end()
    assert text is not None
    assert repr(proxy)[:30] in text
    assert repr(node)[:14] not in text
    assert (kept.end(), proxy.running) == (None, False)
