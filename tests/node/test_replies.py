"""Replies: they leave at once, and those to nodes that are gone end when they must, whatever became of who asked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redpoll import Closed, NotSent
from tests.node.support import Inbox, make, to, until, within


@pytest.mark.asyncio
async def test_a_reply_to_a_forgotten_node_ends_with_its_own() -> None:
    """A reply that waits for a node that was forgotten fails when the node that sends it stops."""
    mine = Inbox()
    async with make(mine) as node:
        async with make() as asker:
            await within(asker.send(to(node, b"question")))
        await until(lambda: not node.peers, "the end of the peer")
        reply = node.send(mine.messages[0].reply(b"reply"), timeout=None)
        assert [peer.identity for peer in node.peers] == [mine.messages[0].remote_identity]
        await within(node.stop(drain=0))
        assert reply.done()
        with pytest.raises(NotSent, match="the node is not running") as caught:
            await reply
        assert isinstance(caught.value.__cause__, Closed)


@pytest.mark.asyncio
async def test_a_reply_to_a_forgotten_node_has_its_time() -> None:
    """A reply that waits for a node that was forgotten fails at its deadline, and leaves nothing of that node."""
    mine = Inbox()
    async with make(mine) as node:
        async with make() as asker:
            await within(asker.send(to(node, b"question")))
        await until(lambda: not node.peers, "the end of the peer")
        with pytest.raises(NotSent, match="waiting to be sent"):
            await within(node.send(mine.messages[0].reply(b"reply"), timeout=0.05))
        await until(lambda: not node.peers, "the end of the peer again")


@pytest.mark.asyncio
async def test_a_large_answer_leaves_at_once() -> None:
    """A large answer that comes when nothing else is written is sent at once, and not with the next thing that is."""

    async def answers(message: Any) -> bytes:
        await asyncio.sleep(0)
        return bytes(2 * 1024 * 1024)

    async with make(answers, keepalive=None) as node, make(listen=False, keepalive=None) as client:
        answer = await within(client.request(to(node), timeout=None))
        assert len(answer.data) == 2 * 1024 * 1024
