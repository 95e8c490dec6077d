"""Nodes whose handlers forward, and a last hop that is frozen: who sent first learns of it in time, and who it is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from redpoll import Address, HandlerFailed, Node, Received
from redpoll.testing.plugin import FaultsFactory, NodeFactory
from tests.node.processes import Process
from tests.node.support import Inbox, make, to, until, within

pytestmark = pytest.mark.asyncio

#: Seconds that the first sender gives; each router has less, by what it takes to ask the next hop whether it had begun.
TIMEOUT = 2.0


class Router:
    """A handler that forwards to the next hop, by a send or a request as it was asked itself.

    Attributes:
        gave_up: Of each forwarding that failed, whether whoever asked had given up by then.
    """

    def __init__(self, onward: Address) -> None:
        self._onward = onward
        self.gave_up: list[bool] = []

    async def __call__(self, message: Received[bytes]) -> Any:
        onward = message.forward(self._onward)
        try:
            if message.wanted:
                return (await message.node.request(onward)).data
            await message.node.send(onward)
        except BaseException:
            self.gave_up.append(message.cancelled.is_set())
            raise
        return None


def submit(node: Node[Any], way: str, target: Node[Any], data: bytes = b"x") -> asyncio.Future[Any]:
    """Send or ask."""
    return (node.request if way == "request" else node.send)(to(target, data), timeout=TIMEOUT)


@pytest.mark.parametrize("way", ["send", "request"])
async def test_a_frozen_next_hop(tmp_path: Path, way: str) -> None:
    """The first sender's error names the hop that is frozen, before its own time is over."""
    async with Process(tmp_path) as last:
        router = Router(last.address)
        async with make(router) as middle, make() as client:
            await within(submit(client, way, middle, b"before"))
            last.freeze()
            with pytest.raises(HandlerFailed) as caught:
                await within(submit(client, way, middle))
            assert str(caught.value).startswith(f"message to {middle.address} was refused: the handler failed: ")
            assert f"message to {last.address} was sent, but not confirmed: no acknowledgement" in str(caught.value)
            assert router.gave_up == [False]
            last.thaw()


async def test_a_next_hop_that_is_frozen_before_there_is_a_link(tmp_path: Path) -> None:
    """Where the frozen hop could not even be greeted the error says that it was not sent there, and why."""
    async with Process(tmp_path) as last:
        last.freeze()
        router = Router(last.address)
        async with make(router, connect_timeout=0.3) as middle, make() as client:
            with pytest.raises(HandlerFailed) as caught:
                await within(submit(client, "send", middle))
            assert f"message to {last.address} was not sent: " in str(caught.value)
            assert router.gave_up == [False]
            last.thaw()


@pytest.mark.parametrize("way", ["send", "request"])
async def test_behind_two_routers(redpoll_node: NodeFactory, redpoll_faults: FaultsFactory, way: str) -> None:
    """Through two routers it is still the last hop that is named, to each of those before it in its own time."""
    inbox = Inbox(answer=b"answer")
    async with redpoll_node(inbox) as last, redpoll_faults(last) as proxy:
        second = Router(proxy.address)
        async with redpoll_node(second) as behind:
            first = Router(behind.address)
            async with redpoll_node(first) as middle, redpoll_node(listen=False) as client:
                await within(submit(client, way, middle, b"before"))
                proxy.freeze()
                with pytest.raises(HandlerFailed) as caught:
                    await within(submit(client, way, middle))
                text = str(caught.value)
                names = [text.index(str(each)) for each in (middle.address, behind.address, proxy.address)]
                assert names == sorted(names)
                assert text.index("was sent, but not confirmed: no acknowledgement") > names[-1]
                assert (first.gave_up, second.gave_up) == ([False], [False])
                proxy.thaw()


async def test_a_next_hop_whose_link_is_given_up(redpoll_node: NodeFactory, redpoll_faults: FaultsFactory) -> None:
    """A router that finds out earlier, by its keepalive, tells so at once, without a timeout of anybody."""
    async with redpoll_node(Inbox()) as last, redpoll_faults(last) as proxy:
        async with redpoll_node(Router(proxy.address), keepalive=0.1) as middle, redpoll_node() as client:
            await within(client.send(to(middle)))
            proxy.freeze(to="present")
            with pytest.raises(HandlerFailed, match=f"message to {proxy.address} .*ping timeout"):
                await within(client.send(to(middle), timeout=None))
            proxy.calm()


async def test_a_hop_that_thaws_goes_on(redpoll_node: NodeFactory, redpoll_faults: FaultsFactory) -> None:
    """A hop that was frozen for less than the time that is left loses nothing: the forwarded message is done once."""
    inbox = Inbox(answer=b"answer")
    async with redpoll_node(inbox) as last, redpoll_faults(last) as proxy:
        router = Router(proxy.address)
        async with redpoll_node(router) as middle, redpoll_node() as client:
            proxy.freeze()
            asked = client.request(to(middle), timeout=None)
            await until(lambda: middle.stats().received, "the router")
            proxy.thaw()
            assert (await within(asked)).data == b"answer"
            assert (inbox.begun, router.gave_up) == ([b"x"], [])
