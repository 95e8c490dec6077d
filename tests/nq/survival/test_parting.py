"""Clients and a server that part over links that break, and processes that do not live to see the end of it."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tests.blocking.support import PATIENCE, in_thread, until
from tests.nq.support import World
from tests.nq.survival.test_cut_links import Cutter, cutter

__all__ = ["cutter"]

SECRET = b"known to this id"


def test_a_client_that_was_given_up(world: World, cutter: Cutter) -> None:
    """Its close ends though the server does not know it any more: nobody has anything for the other."""
    server = world.server(resume=0.2)
    client = world.client(netloc=cutter.netloc, resume=PATIENCE)
    client.put("first").result()
    cutter.call("refuse")
    cutter.call("cut", "rst")
    until(lambda: not server.endpoint.sessions, "the server to give it up")
    closing = in_thread(client.close)
    until(lambda: client.endpoint.closing, "the close")
    cutter.call("admit")
    closing.result(PATIENCE)
    assert server.get().data == "first"


@pytest.mark.parametrize("first", ["former", "later"])
def test_the_successor_of_one_that_was_done(world: World, cutter: Cutter, first: str) -> None:
    """It gets what was on its way to who had said that it is done, and is not done itself; both come to their ends."""
    server = world.server(resume=PATIENCE)
    identity = uuid4()
    former = world.client(id=identity, secret=SECRET, netloc=cutter.netloc, resume=PATIENCE)
    former.put("from the former").result()
    cutter.call("cut", "silence", "back")
    puts = [server.put(number, identity) for number in range(3)]
    closing = in_thread(former.close)
    until(lambda: server.endpoint.sessions[identity].received_fin, "the former to be done")
    later = world.client(id=identity, secret=SECRET, resume=PATIENCE)
    messages = [later.get() for _ in puts]
    assert [message.data for message in messages] == [0, 1, 2]
    assert all(message.redelivered for message in messages)
    assert [put.exception() for put in puts] == [None] * 3
    later.put("from the later").result()
    server.put("more", identity).result()
    assert later.get().data == "more"
    if first == "later":
        later.close()
    cutter.call("cut", "rst")
    closing.result(PATIENCE)
    later.close()
    assert [server.get().data for _ in "12"] == ["from the former", "from the later"]


def test_the_successor_of_one_that_was_sent_away(world: World, cutter: Cutter) -> None:
    """A client that a server does not want any more hears that in its next process, if the one before did not."""
    server = world.server(resume=PATIENCE)
    identity = uuid4()
    former = world.client(id=identity, secret=SECRET, netloc=cutter.netloc, resume=PATIENCE)
    former.ready()
    cutter.call("cut", "silence", "back")
    server.disconnect(identity)
    until(lambda: server.endpoint.sessions[identity].sent_fin, "the end to be said")
    later = world.client(id=identity, secret=SECRET, resume=PATIENCE)
    with pytest.raises(ConnectionResetError):
        later.get()
    until(lambda: not server.endpoint.sessions, "the end")
    former.close(0)
