"""What a child of the process does with a node that its parent runs."""

from __future__ import annotations

import pytest

from redpoll import Node
from redpoll.node.lifecycle import release_inherited
from tests.blocking.support import run_program

FORKED = """
import asyncio, os, stat
from redpoll import Message, Node, UsageError

def sockets_of(node):
    descriptors = list(node._listener.descriptors)
    for connection in node._peers.connections:
        descriptors.append(connection.transport.get_extra_info("socket").fileno())
    return descriptors

def in_child(node, other, message, descriptors):
    try:
        if SOCKETS:
            left = [each for each in descriptors if stat.S_ISSOCK(os.fstat(each).st_mode)]
            return 1 if left or len(descriptors) < 2 else 0
        for call in (other.send, other.request, lambda _: node.address):
            try:
                call(message)
            except UsageError as error:
                if "belongs to the parent process" not in str(error):
                    return 2
            else:
                return 3
        try:
            other.stop().send(None)
        except StopIteration:
            return 0
        return 4
    except BaseException:
        return 5

async def main():
    async with Node(lambda _: None, port=0) as node, Node(port=0) as other:
        await other.send(Message(b"linked", node.address))
        descriptors = sockets_of(node)
        message = Message(b"of the child", node.address)
        child = os.fork()
        if not child:
            os._exit(in_child(node, other, message, descriptors))
        print(await asyncio.to_thread(os.waitpid, child, 0) == (child, 0))
        await other.send(Message(b"still there", node.address))
        print(node.stats().received)

LOOP
"""

RUN = {
    "asyncio": "asyncio.run(main())",
    "uvloop": "import uvloop; uvloop.run(main())",
}


def _program(loop: str, *, sockets: bool) -> str:
    return FORKED.replace("SOCKETS", str(sockets)).replace("LOOP", RUN[loop])


@pytest.mark.parametrize("loop", RUN)
def test_its_sockets_are_let_go(loop: str) -> None:
    """In the child they are no sockets any more, so that the parent's close where the parent closes them."""
    done = run_program(_program(loop, sockets=True), "-W", "ignore::DeprecationWarning")
    assert done.stdout == "True\n2\n", done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize("loop", RUN)
def test_using_it_is_an_error(loop: str) -> None:
    """In the child sending with it is refused and stopping it does nothing; the parent's links go on."""
    done = run_program(_program(loop, sockets=False), "-W", "ignore::DeprecationWarning")
    assert done.stdout == "True\n2\n", done.stderr
    assert done.returncode == 0


NAMED = """
import asyncio, os
from redpoll import Node

async def listen():
    async with Node(lambda _: None, host="inproc:here") as node:
        return str(node.address)

async def main():
    async with Node(lambda _: None, host="inproc:here"):
        child = os.fork()
        if not child:
            code = 1
            try:
                asyncio._set_running_loop(None)
                code = 0 if asyncio.run(listen()) == "inproc:here" else 2
            finally:
                os._exit(code)
        print(await asyncio.to_thread(os.waitpid, child, 0) == (child, 0))

asyncio.run(main())
"""


def test_its_names_are_free() -> None:
    """In the child a node of its own can listen at the name that a node of the parent has."""
    done = run_program(NAMED, "-W", "ignore::DeprecationWarning")
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr


@pytest.mark.asyncio
async def test_one_that_does_not_run_has_none() -> None:
    """Before its start, and after its stop, nothing is done."""
    node = Node(port=0)
    release_inherited(node)
    async with node:
        pass
    release_inherited(node)
