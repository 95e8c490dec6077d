from __future__ import annotations

import pytest

from redpoll import (
    Expired,
)
from tests.node.support import Inbox, make, to, until, within


@pytest.mark.asyncio
async def test_a_deadline_rings_for_a_peer_that_was_forgotten_and_is_back() -> None:
    """A reply to a peer that was forgotten while its timer stood ends with its timeout."""
    inbox, back = Inbox(), Inbox()
    async with make(inbox) as server:
        async with make(back) as gone:
            await within(gone.send(to(server)))
            await within(server.send(inbox.messages[0].reply(b"one"), timeout=1.0))
        await until(lambda: not server.peers, "the peer to be forgotten")
        with pytest.raises(Expired):
            await within(server.send(inbox.messages[0].reply(b"two"), timeout=1.0))
