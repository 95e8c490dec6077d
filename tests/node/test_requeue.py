"""Messages that wait for one peer and go to another."""

from __future__ import annotations

from typing import Any

import pytest

from redpoll import Message, NotConfirmed, NotSent, PeerLost
from redpoll.node import sessions
from redpoll.wire.capabilities import TELLS_RECORD
from tests.interop.raw import raw_listener
from tests.node.resuming import PATIENT
from tests.node.support import Inbox, make, raw_accepting, settle, within
from tests.wire.linked import lose
from tests.wire.support import REQ_ACK, RETRY, SESSION, Sent, add_link, announcement, feed, frame, make_peer, sent

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


@pytest.mark.parametrize("same", [True, False])
async def test_what_was_in_flight_goes_to_who_remembers_it(same: bool) -> None:
    """What another peer is to have again fails unless it is known there by the record that it went out to."""
    former, peer = make_peer(), make_peer()
    for each, record in ((former, b"record 1"), (peer, b"record 1" if same else b"record 2")):
        link = add_link(each, announced=announcement(flags=TELLS_RECORD), flags=TELLS_RECORD)
        feed(link, frame(SESSION, 0, b"\x06" + record))
    former.submit(out := Sent(retry=1), 0.0)
    lose(former.links[0])
    (waiting,) = former.take_queue()
    sessions._move([waiting], peer, 0.0)
    assert [kind for kind, *_ in sent(peer.links[0]) if kind != SESSION] == [REQ_ACK | RETRY] * same
    assert out.settled != same
    assert same or isinstance(out.error, NotConfirmed)
