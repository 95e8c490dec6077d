"""What stopping owes to those who send."""

from __future__ import annotations

import pytest

from redpoll import Message, Node, ShuttingDown

pytestmark = pytest.mark.asyncio


async def test_what_nobody_pulls_does_not_hold_up_the_stop() -> None:
    """A node that nobody pulls from refuses what waits as it stops, as not begun, instead of draining for ever."""
    server: Node[bytes] = Node(unclaimed_timeout=3600)
    client: Node[bytes] = Node(listen=False, timeout=None)
    async with client, server:
        sends = [client.send(Message(b"x", server.address)) for _ in range(3)]
        await client.ready(server.address)
        async with server.take() as first:
            assert first.data == b"x"
        await sends[0]
        await server.stop(drain=None)
        for send in sends[1:]:
            with pytest.raises(ShuttingDown) as refused:
                await send
            assert refused.value.sent is False
