"""Messages of sixteen bytes, the size of an id: none of them means anything to the library."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from redpoll import nq
from tests.nq.support import World

SERIALIZERS: dict[str, Any] = {"bytes": nq.BytesSerializer(), "buffer": nq.BufferSerializer()}


@pytest.mark.parametrize("name", SERIALIZERS)
def test_ids_as_messages(world: World, name: str) -> None:
    """The id of either end, and of nobody, arrive as what they are: first, in the middle, twice, last, both ways."""
    each = SERIALIZERS[name]
    server = world.server(serialization=nq.SerializationOptions(each.load, each.dump))
    client = world.client(serialization=nq.SerializationOptions(each.load, each.dump))
    bodies = [server.id.bytes, client.id.bytes, uuid.uuid4().bytes, bytes(16), b"\xff" * 16, b"nq hello".ljust(16)]
    bodies = [*bodies, *reversed(bodies), *bodies]
    for body in bodies:
        client.put(body)
    assert [bytes(server.get().data) for _ in bodies] == bodies
    for body in bodies:
        server.put(body)
        server.put(body, client.id)
    assert [bytes(client.get().data) for _ in range(2 * len(bodies))] == [body for body in bodies for _ in "12"]
    client.put(server.id.bytes)
    client.put(client.id.bytes)
    client.close()
    assert bytes(server.get().data) == server.id.bytes
    assert bytes(server.get().data) == client.id.bytes
    # It means to close, and not what it put last.
    assert (
        world.met(id=client.id, serialization=server.made.options.serialization).put(client.id.bytes).result() is None
    )
    assert bytes(server.get().data) == client.id.bytes


@pytest.mark.parametrize("first", ["own", "peer"])
def test_an_id_as_the_first_message(world: World, first: str) -> None:
    """An id that is put before the ends have met is no hello."""
    serialization = nq.SerializationOptions(nq.BytesSerializer().load, nq.BytesSerializer().dump)
    identity = uuid.uuid4()
    client = world.client(serialization=serialization)
    body = (client.id if first == "own" else identity).bytes
    puts = [client.put(body), client.put(body)]
    server = world.server(id=identity, serialization=serialization)
    assert [server.get() for _ in puts] == [nq.Message(client.id, body)] * 2
    assert [put.result() for put in puts] == [None, None]
