"""What a child of the process does with a node that its parent runs."""

from __future__ import annotations

import pytest

from redpoll import Node
from redpoll.node.inherited import let_go
from tests.blocking.support import run_program

FORKED = """
import asyncio, os, stat
from redpoll import Message, Node
from redpoll.node.inherited import let_go

def sockets_of(node):
    descriptors = list(node._listener.descriptors)
    for connection in node._peers.connections:
        descriptors.append(connection.transport.get_extra_info("socket").fileno())
    return descriptors

async def main():
    async with Node(lambda _: None, port=0) as node, Node(port=0) as other:
        await other.send(Message(b"linked", node.address))
        child = os.fork()
        if not child:
            descriptors = sockets_of(node)
            let_go(node)
            left = [each for each in descriptors if stat.S_ISSOCK(os.fstat(each).st_mode)]
            os._exit(1 if left or len(descriptors) < 2 else 0)
        print(await asyncio.to_thread(os.waitpid, child, 0) == (child, 0))
        await other.send(Message(b"still there", node.address))

LOOP
"""

RUN = {
    "asyncio": "asyncio.run(main())",
    "uvloop": "import uvloop; uvloop.run(main())",
}


@pytest.mark.parametrize("loop", RUN)
def test_its_sockets_are_let_go(loop: str) -> None:
    """In the child they are no sockets any more, so that the parent's close where the parent closes them."""
    done = run_program(FORKED.replace("LOOP", RUN[loop]), "-W", "ignore::DeprecationWarning")
    assert done.stdout == "True\n", done.stderr
    assert done.returncode == 0


@pytest.mark.asyncio
async def test_one_that_does_not_run_has_none() -> None:
    """Before its start, and after its stop, nothing is done."""
    node = Node(port=0)
    let_go(node)
    async with node:
        pass
    let_go(node)
