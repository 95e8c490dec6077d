"""Names that come to stand for another address while a node runs: each dialling looks them up anew."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from redpoll import Message, Node, NotConfirmed
from tests.node.support import Inbox, make, settle, to, until, within
from tests.ports import free_port

pytestmark = pytest.mark.asyncio

#: Two machines, as far as anybody can tell.
HERE, THERE = "127.0.0.1", "127.0.0.2"

# Only 127.0.0.1 is sent to without encryption unless it is said.
OPTIONS: dict[str, Any] = {"encryption": False}


class Names:
    """A resolver that knows one name.

    Attributes:
        host: What the name stands for now.
        asked: How often it was looked up.
        askers: The tasks that did.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host = HERE
        self.asked = 0
        self.askers: set[asyncio.Task[Any] | None] = set()
        self.port = free_port()
        loop = asyncio.get_running_loop()
        getaddrinfo = loop.getaddrinfo

        async def look_up(host: str, port: int, **options: Any) -> list[Any]:
            if host != "some-name":
                return list(await getaddrinfo(host, port, **options))
            self.asked += 1
            self.askers.add(asyncio.current_task())
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (self.host, port))]

        monkeypatch.setattr(loop, "getaddrinfo", look_up, raising=False)

    def node(self, host: str, inbox: Inbox, **options: Any) -> Node[Any]:
        """A node on one of the machines."""
        return make(inbox, host=host, port=self.port, **OPTIONS, **options)

    def message(self, data: bytes, host: str = "some-name") -> Message[bytes]:
        """A message to whoever the name stands for."""
        return Message(data, f"{host}:{self.port}")


def cut(server: Node[Any]) -> None:
    """Break all links of a node."""
    for connection in list(server._peers.connections):
        assert connection.transport is not None
        connection.transport.abort()


async def lose(server: Node[Any]) -> None:
    """End a node as a crash does: its links break, nobody says goodbye."""
    cut(server)
    await server.stop(drain=0)


@pytest.mark.parametrize("end", ["goodbye", "crash"])
async def test_the_next_dialling_goes_to_the_new_address(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """A link stays where it was made while it lives; the one that follows goes where the name points by then."""
    names, here, there = Names(monkeypatch), Inbox(), Inbox()
    first = names.node(HERE, here)
    await first.start()
    async with names.node(THERE, there), make(**OPTIONS) as client:
        await within(client.send(names.message(b"one")))
        names.host = THERE
        await within(client.send(names.message(b"two")))
        await (first.stop() if end == "goodbye" else lose(first))
        await until(lambda: client.stats().connections == 0, "the end of the link")
        await within(client.send(names.message(b"three")))
        assert (here.begun, there.begun) == ([b"one", b"two"], [b"three"])


async def test_what_waits_goes_to_the_new_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that wait while nobody listens at the old address arrive, in order, where the name points in the end."""
    names, there = Names(monkeypatch), Inbox()
    async with names.node(THERE, there), make(**OPTIONS) as client:
        futures = [client.send(names.message(bytes([number]))) for number in range(5)]
        await until(lambda: names.asked >= 3, "a few diallings in vain")
        assert not there.begun
        names.host = THERE
        await within(asyncio.gather(*futures))
        assert there.begun == [bytes([number]) for number in range(5)]


@pytest.mark.parametrize("retry", [0, 1])
async def test_what_was_in_flight_as_it_moved(monkeypatch: pytest.MonkeyPatch, retry: int) -> None:
    """What the old node may have done is not confirmed, or done again by the new one if that was asked for."""
    names, here, there = Names(monkeypatch), Inbox(hold=True), Inbox()
    first = names.node(HERE, here)
    await first.start()
    async with names.node(THERE, there), make(**OPTIONS) as client:
        await client.ready(names.message(b"").address or "")
        futures = [client.send(names.message(bytes([number])), retry=retry) for number in range(3)]
        await here.holds(1)
        names.host = THERE
        await lose(first)
        await settle(*futures)
        if retry:
            assert [future.exception() for future in futures] == [None] * 3
            assert there.begun == [b"\0", b"\1", b"\2"]
            assert there.messages[0].redelivered
        else:
            errors = [future.exception() for future in futures]
            assert all(isinstance(error, NotConfirmed) and error.sent for error in errors)
            await within(client.send(names.message(b"after")))
            assert there.begun == [b"after"]
        assert here.begun == [b"\0"]


async def test_an_address_is_not_taken_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is for an address goes there, though a name stood for it that stands for another one by now."""
    names, here, there, back = Names(monkeypatch), Inbox(hold=True), Inbox(), Inbox()
    first = names.node(HERE, here, window=1)
    await first.start()
    async with names.node(THERE, there), make(**OPTIONS) as client:
        lost = client.send(names.message(b"lost"))
        await here.holds(1)
        by_name, by_address = client.send(names.message(b"by name")), client.send(names.message(b"by address", HERE))
        names.host = THERE
        await lose(first)
        await settle(lost)
        later = client.send(names.message(b"later", HERE))
        await within(by_name)
        async with names.node(HERE, back):
            await within(asyncio.gather(by_address, later))
        assert there.begun == [b"by name"]
        assert back.begun == [b"by address", b"later"]


async def test_a_name_is_no_property_of_the_node_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that led to a node that was known by its address leads elsewhere when it is lost and the name has moved."""
    names, here, there = Names(monkeypatch), Inbox(), Inbox()
    first = names.node(HERE, here)
    await first.start()
    async with names.node(THERE, there), make(Inbox(), **OPTIONS) as client:
        # It has done something for that node, and so remembers it for a while.
        await within(first.send(to(client)))
        await within(client.send(names.message(b"one")))
        assert client.stats().connections == 1
        names.host = THERE
        await lose(first)
        await until(lambda: client.stats().connections == 0, "the end of the link")
        await within(client.send(names.message(b"two")))
        assert (here.begun, there.begun) == ([b"one"], [b"two"])


@pytest.mark.parametrize("first", ["name", "address"])
async def test_by_name_and_by_address_at_once(monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    """After a cut what waits for a name and what waits for its address turn out to be for one node, and are done once."""
    names, inbox = Names(monkeypatch), Inbox(hold=True)
    loop = asyncio.get_running_loop()
    connect = loop.create_connection

    async def one_by_one(*args: Any, **options: Any) -> Any:
        if (asyncio.current_task() in names.askers) == (first == "address"):
            await until(lambda: client.stats().connections, "the other link")
        return await connect(*args, **options)

    async with names.node(HERE, inbox, window=4, slots=4) as server, make(**OPTIONS) as client:
        await client.ready(f"some-name:{names.port}")
        futures = [
            client.send(names.message(bytes([number]), "some-name" if number % 2 else HERE), retry=1)
            for number in range(12)
        ]
        await inbox.holds(4)
        monkeypatch.setattr(loop, "create_connection", one_by_one, raising=False)
        cut(server)
        inbox.gate.set()
        await within(asyncio.gather(*futures))
        assert sorted(inbox.begun) == [bytes([number]) for number in range(12)]
        await until(lambda: client.stats().connections == server.stats().connections == 1, "one link")
        assert (len(client.peers), len(server.peers)) == (1, 1)
        assert client.stats().conflicts == server.stats().conflicts == 0


async def test_a_link_by_address_is_the_same_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that was known by a name and is dialled by its address is known again: what it sends again is not done again."""
    names, inbox, back = Names(monkeypatch), Inbox(), Inbox(hold=True)
    loop = asyncio.get_running_loop()
    connect = loop.create_connection

    async def client_first(factory: Any, host: str, port: int) -> Any:
        if port != names.port:
            await until(lambda: len(inbox.messages) == 2, "the link that the client makes")
        return await connect(factory, host, port)

    async with names.node(HERE, inbox) as server, make(back, **OPTIONS) as client:
        await within(client.send(names.message(b"by name")))
        answer = server.send(to(client), retry=1)
        await back.holds(1)
        monkeypatch.setattr(loop, "create_connection", client_first, raising=False)
        cut(server)
        await until(lambda: client.stats().connections == 0, "the end of the link")
        back.gate.set()
        await within(client.send(names.message(b"by address", HERE)))
        await within(answer)
        assert back.begun == [b"x"]
