"""Messages that wait for one peer and go to another."""

from __future__ import annotations

from typing import Any

import pytest

from redpoll import Message, NotConfirmed, NotSent, PeerLost
from tests.interop.raw import raw_listener
from tests.node.resuming import PATIENT
from tests.node.support import Inbox, make, raw_accepting, settle, within

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("options", [{"timeout": None}, PATIENT])
async def test_what_waits_goes_to_who_is_there_now(options: dict[str, Any]) -> None:
    """Another node where one was gets what was queued for the address; what was in flight to the first is not confirmed."""
    inbox = Inbox()
    async with make(**options) as client, raw_listener() as listener:
        address = f"127.0.0.1:{listener.port}"
        sends = [client.send(Message(b"%d" % number, address)) for number in range(3)]
        async with raw_accepting(listener, window=1) as link:
            while (await link.read_frame()).data != b"0":
                pass
        listener.close()
        async with make(inbox, port=listener.port):
            await settle(*sends)
        error = sends[0].exception()
        assert isinstance(error, NotConfirmed)
        assert [each.exception() for each in sends[1:]] == [None, None]
        assert inbox.begun == [b"1", b"2"]


async def test_what_is_for_one_alone_fails() -> None:
    """A reply is for the node that asked: another one at its address gets nothing of it."""
    asked, other_inbox = Inbox(), Inbox()
    async with make(asked, **PATIENT) as server:
        async with make() as first:
            await within(first.send(Message(b"hello", server.address)))
            port = first.address.port
        reply = server.send(asked.messages[0].reply(b"for the first"))
        async with make(other_inbox, port=port):
            await settle(reply)
        assert isinstance(reply.exception(), NotSent)
        assert isinstance(getattr(reply.exception(), "__cause__", None), PeerLost)
        assert other_inbox.begun == []
