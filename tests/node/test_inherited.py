"""What a child of the process does with a node that its parent runs."""

from __future__ import annotations

import asyncio
import os
import stat

import pytest

from redpoll import Node
from redpoll.node.inherited import let_go
from tests.node.support import to

pytestmark = pytest.mark.asyncio


async def test_its_sockets_are_let_go() -> None:
    """In the child they are no sockets any more, so that the parent's close where the parent closes them."""
    async with Node(lambda _: None, port=0) as node, Node(port=0) as other:
        await other.send(to(node, b"linked"))
        there, here = os.pipe()
        child = os.fork()
        if not child:
            listener = node._listener
            descriptors = [] if listener is None else listener.descriptors
            for connection in node._peers.connections:
                if connection.transport is not None:
                    descriptors.append(connection.transport.get_extra_info("socket").fileno())
            let_go(node)
            left = len(descriptors) < 2 or any(map(_is_socket, descriptors))
            os.write(here, b"left" if left else b"gone")
            os._exit(0)
        os.close(here)
        said = await asyncio.to_thread(os.read, there, 4)
        os.close(there)
        await asyncio.to_thread(os.waitpid, child, 0)
        assert said == b"gone"
        await other.send(to(node, b"still there"))


async def test_one_that_does_not_run_has_none() -> None:
    """Before its start, and after its stop, nothing is done."""
    node = Node(port=0)
    let_go(node)
    async with node:
        pass
    let_go(node)


def _is_socket(descriptor: int) -> bool:
    return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
