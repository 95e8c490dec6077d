"""What comes too late between nodes whose network stands still meanwhile: answers, and deadlines that pass in the inbox."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redpoll import Message, NoAnswer, NotConfirmed
from redpoll.errors import ConfirmTimeout
from redpoll.testing.plugin import FaultsFactory, NodeFactory
from tests.node.support import Inbox, settle, until, within

pytestmark = pytest.mark.asyncio

OPTIONS: dict[str, Any] = {"keepalive": 30.0, "slots": 1}


async def test_a_deadline_that_passes_in_the_inbox(redpoll_node: NodeFactory, redpoll_faults: FaultsFactory) -> None:
    """Where its withdrawal does not get through a message that waits is not begun either, and its sender says: unsure."""
    inbox = Inbox(hold=True)
    async with (
        redpoll_node(inbox, **OPTIONS) as server,
        redpoll_faults(server) as proxy,
        redpoll_node(**OPTIONS) as client,
    ):
        first = client.send(Message(b"first", proxy.address), timeout=None)
        late: list[asyncio.Future[Any]] = [
            client.send(Message(b"late", proxy.address), timeout=0.5),
            client.request(Message(b"late too", proxy.address), timeout=0.5),
        ]
        await until(lambda: server.stats().received == 3, "the messages to wait in the inbox")
        proxy.freeze()
        await settle(*late)
        for each in late:
            error = each.exception()
            assert isinstance(error, ConfirmTimeout)
            assert error.sent
        inbox.gate.set()
        await until(lambda: server.stats().refused == 2, "their refusals")
        proxy.thaw()
        await within(first)
        await within(client.send(Message(b"after", proxy.address)))
        assert inbox.begun == [b"first", b"after"]
        await until(lambda: client.stats().in_flight == 0, "the refusals")


async def test_an_answer_that_comes_late(redpoll_node: NodeFactory, redpoll_faults: FaultsFactory) -> None:
    """Answers that were on their way when the time was over are counted, one by one, and reach nobody."""
    inbox, back = Inbox(answer=b"answer"), Inbox()
    async with (
        redpoll_node(inbox, **{**OPTIONS, "slots": 3}) as server,
        redpoll_faults(server) as proxy,
        redpoll_node(back, **OPTIONS) as client,
    ):
        await client.ready(proxy.address)
        proxy.freeze("back")
        asked = [client.request(Message(b"x", proxy.address), timeout=0.2) for _ in range(3)]
        await settle(*asked)
        for each in asked:
            assert isinstance(each.exception(), NotConfirmed | NoAnswer)
        assert len(inbox.ended) == 3
        proxy.thaw()
        await until(lambda: client.stats().late == 3, "the answers to be counted")
        assert (await within(client.request(Message(b"again", proxy.address)))).data == b"answer"
        assert back.begun == []
        assert client.stats().in_flight == 0
