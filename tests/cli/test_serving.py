"""A node that a command runs."""

from __future__ import annotations

import json

import pytest

from redpoll.address import Address
from redpoll.cli.codes import CannotListenError
from redpoll.cli.output import Output, reason, remedy
from redpoll.cli.runtime import Stop
from redpoll.cli.serving import announce, serving
from redpoll.node import Node

pytestmark = pytest.mark.asyncio


async def test_the_node_runs_inside_only() -> None:
    """It listens on entering and is stopped on leaving, also by an error."""
    node: Node[bytes] = Node(lambda message: None, port=0)

    async def fail() -> None:
        async with serving(node, Address.parse("127.0.0.1:0"), Stop(), until_eof=False):
            assert node.listening
            raise KeyError

    with pytest.raises(KeyError):
        await fail()
    assert node.listening == ()


async def test_where_it_cannot_listen_is_told() -> None:
    """An address in use is an error that names it, and says why once."""
    first: Node[bytes] = Node(lambda message: None, port=0)
    async with first:
        first_address = first.address
        node: Node[bytes] = Node(lambda message: None, port=first_address.port)
        with pytest.raises(CannotListenError) as caught:
            async with serving(node, first.address, Stop(), until_eof=False):
                pass
    assert reason(caught.value) == f"cannot listen on {first_address}: Address already in use"
    assert remedy(caught.value) == "another process listens there: end it, or listen elsewhere; port 0 is any free one"


async def test_the_announcement_has_address_and_slots(capsys: pytest.CaptureFixture[str]) -> None:
    """A script reads where to send, and how much is worked on at a time."""
    node: Node[bytes] = Node(lambda message: None, port=0)
    async with serving(node, Address.parse("127.0.0.1:0"), Stop(), until_eof=False):
        announce(node, 5, Output(json=True))
        announce(node, 5, Output())
        address = str(node.address)
    told = capsys.readouterr()
    assert json.loads(told.out) == {"event": "listening", "address": address, "slots": 5}
    assert told.err == f"redpoll: listening on {address}\n"
