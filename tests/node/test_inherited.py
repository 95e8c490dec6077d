"""What a child of the process does with a node that its parent runs."""

from __future__ import annotations

import asyncio
import os
import socket
import warnings

import pytest

from redpoll import Message, Node
from redpoll.node.inherited import let_go
from tests.node.support import within

pytestmark = pytest.mark.asyncio


async def test_its_sockets_are_let_go() -> None:
    """In a child the descriptors of listener and connections stand for nothing any more; the parent's go on."""
    async with Node(lambda message: b"pong", port=0) as there, Node(listen=False) as node:
        address = there.address
        await within(node.request(Message(b"ping", address)))
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, of which the child needs none
            child = os.fork()
        if not child:
            try:
                before = _sockets()
                for each in (there, node):
                    let_go(each)
                    let_go(each)  # once more does nothing
                os.write(writing, b"%d %d" % (before, _sockets()))
            finally:
                os._exit(0)
        os.close(writing)
        before, after = map(int, os.read(reading, 100).split())
        os.close(reading)
        await asyncio.to_thread(os.waitpid, child, 0)
        assert before - after == 3
        assert (await within(node.request(Message(b"ping", address)))).data == b"pong"


def _sockets() -> int:
    """How many connections and listeners by TCP this process has."""
    count = 0
    for number in range(256):
        try:
            with socket.socket(fileno=os.dup(number)) as found:
                count += found.family in {socket.AF_INET, socket.AF_INET6}
        except OSError:
            continue
    return count


async def test_a_node_that_does_not_run() -> None:
    """Before the start and after the end there is nothing to let go of."""
    node = Node(port=0)
    let_go(node)
    async with node:
        pass
    let_go(node)
    assert node.listening == ()
