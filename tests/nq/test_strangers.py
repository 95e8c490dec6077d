"""Who comes to a server without being meant, and what they cannot do."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from redpoll import Message, Node, nq
from redpoll.errors import ConfigError, Refused
from redpoll.nq.core.endpoint import HELLO
from redpoll.nq.core.hello import hello_body
from redpoll.nq.core.names import Purpose
from redpoll.serializers import msgpack
from tests.serializers.pickling.attacks import ARRAYS, ATTACKS

pytestmark = pytest.mark.asyncio

PATIENCE = 10.0


def at(netloc: nq.NetworkLocation, **options: object) -> nq.CommunicatorOptions:
    """Options with a place."""
    return nq.CommunicatorOptions(netloc=netloc, **options)  # type: ignore[arg-type]


@pytest_asyncio.fixture
async def server() -> AsyncIterator[nq.aio.Communicator]:
    """One at any free port, which nobody has to close for."""
    async with nq.aio.new(purpose="server", options=at(nq.NetworkLocation(port=0))) as made:
        yield made
        await made.close(0)


def to(server: nq.aio.Communicator, data: bytes, header: bytes = b"") -> Message[bytes]:
    """A message to the node of a server."""
    return Message(data, str(server.netloc), header=header)


async def test_nothing_is_taken_before_a_hello(server: nq.aio.Communicator) -> None:
    """What a node sends that has not said hello is refused, reaches no queue, and the node gets no put."""
    async with Node[bytes]() as stranger:
        for header in (b"", b"R", b"nq fin", b"anything"):
            with pytest.raises(Refused):
                await stranger.send(to(server, b"x", header), timeout=PATIENCE)
        with pytest.raises(TimeoutError):
            await server.get(timeout=0)
        assert server.put("to all").done()


@pytest.mark.parametrize(
    "hello", [b"", b"\xff", b"\x80", bytes(hello_body(Purpose.SERVER)), bytes(msgpack.encode({"nq": "1"}))]
)
async def test_a_hello_of_something_else(server: nq.aio.Communicator, hello: bytes) -> None:
    """A hello that is none, or another server's, is refused with the reason, and nobody has come."""
    async with Node[bytes]() as stranger:
        with pytest.raises(Refused) as caught:
            await stranger.request(to(server, hello, HELLO), timeout=PATIENCE)
        assert caught.value.text
        assert not server.put("to all").futures


async def test_an_id_that_is_in_use(server: nq.aio.Communicator, caplog: pytest.LogCaptureFixture) -> None:
    """A second client with an id is refused and told so, in the log too; the first one gets what is put for it."""
    who = uuid.uuid4()
    async with nq.aio.new(options=at(server.netloc, id=who)) as first:
        await first.ready(PATIENCE)
        async with nq.aio.new(options=at(server.netloc, id=who)) as second:
            for call in (second.ready(PATIENCE), second.put("x"), second.get(timeout=PATIENCE)):
                with pytest.raises(ConnectionRefusedError) as caught:
                    await call
                assert "another client has this id" in str(caught.value.__cause__)
        assert [record.getMessage() for record in caplog.records if "make CommunicatorOptions" in record.getMessage()]
        await asyncio.wait_for(server.put("to the first", who), PATIENCE)
        assert (await first.get(timeout=PATIENCE)).data == "to the first"


async def test_what_classes_a_peer_can_name(server: nq.aio.Communicator) -> None:
    """By default a class of a program is not let in: its message is refused where it is got, and the next one comes."""
    async with nq.aio.new(options=at(server.netloc)) as client:
        client.put(asyncio.Protocol())
        client.put("plain")
        with pytest.raises(nq.UnpicklingError, match=r"allow=.*allows it"):
            await server.get(timeout=PATIENCE)
        assert (await server.get(timeout=PATIENCE)).data == "plain"


@pytest.mark.parametrize("name", ["arrays of objects in one another", "deques in deques, and an end that fails"])
async def test_what_is_nested_too_deeply(server: nq.aio.Communicator, name: str) -> None:
    """A pickle that would overflow the stack where it is freed is refused where it is got, and the next one comes."""
    options = at(server.netloc, serialization=nq.SerializationOptions(dump=nq.BytesSerializer().dump))
    async with nq.aio.new(options=options) as client:
        client.put({**ATTACKS, **ARRAYS}[name])
        client.put(bytes(nq.PickleSerializer().encode("plain")))
        with pytest.raises(nq.UnpicklingError):
            await server.get(timeout=PATIENCE)
        assert (await server.get(timeout=PATIENCE)).data == "plain"


@pytest.mark.parametrize("purpose", list(nq.Purpose))
@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "queue.example.org"])
async def test_nothing_is_plain_off_loopback(purpose: str, host: str) -> None:
    """Neither end runs unencrypted off this machine unless it is told to; the error names the argument."""
    netloc = nq.NetworkLocation(host, 2998)
    with pytest.raises(ConfigError, match="allow_plain=True"):
        nq.aio.new(purpose=purpose, options=at(netloc))
    nq.aio.new(purpose=purpose, options=at(netloc, allow_plain=True))
