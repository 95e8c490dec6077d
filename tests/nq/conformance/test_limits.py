"""Section 2.4 of the contract: bounds of messages and bytes, at both ends, and what happens there."""

from __future__ import annotations

from typing import Any

import pytest

from redpoll import ConfigError, MessageTooLarge, QueueFull, nq
from tests.blocking.support import PATIENCE, in_thread, until
from tests.nq.support import End, Outcome, World

BUFFERS = nq.SerializationOptions(nq.BufferSerializer().load, nq.BufferSerializer().dump)


def full(put: Outcome) -> bool:
    """Whether a put met a bound; fails if it ended in another way."""
    error = put.exception()
    assert error is None or isinstance(error, QueueFull)
    return error is not None


def got(end: End, count: int) -> list[Any]:
    """So many that are there."""
    return [end.get(timeout=0).data for _ in range(count)]


def test_what_the_receiver_has_no_room_for_is_told(world: World) -> None:
    """Row "sender not informed": each put that finds the peer's queue full fails with QueueFull, and later ones do not."""
    server = world.server(queue_size=3)
    client = world.met()
    puts = [client.put(number) for number in range(5)]
    assert [full(put) for put in puts] == [False] * 3 + [True] * 2
    assert got(server, 1) == [0]
    assert client.put(5).result() is None
    assert got(server, 3) == [1, 2, 5]


def test_the_bound_is_each_peers(world: World) -> None:
    """Row "counted per peer": what one has waiting is no other's bound."""
    world.server(queue_size=2)
    clients = [world.met() for _ in range(3)]
    puts = [client.put(number) for client in clients for number in range(3)]
    assert [full(put) for put in puts] == [False, False, True] * 3


def test_the_oldest_of_that_peer_is_dropped(world: World) -> None:
    """Row "drop_oldest bug": the oldest of the peer whose queue is full, and no other's; its put is told."""
    server = world.server(queue_size=3, full="drop")
    loud, quiet = world.met(), world.met()
    kept = [quiet.put(number) for number in range(2)]
    until(lambda: len(server.made._receive_queue) == 2, "the quiet one's")
    puts = [loud.put(number) for number in range(10)]
    assert [full(put) for put in puts[:7]] == [True] * 7
    assert got(server, 5) == [0, 1, 7, 8, 9]
    assert [full(put) for put in (*puts[7:], *kept)] == [False] * 5


def test_the_newest_is_dropped(world: World) -> None:
    """Row "drop_oldest": False drops what comes, whose put is told."""
    server = world.server(queue_size=3, full="drop", drop_oldest=False)
    client = world.met()
    puts = [client.put(number) for number in range(6)]
    assert [full(put) for put in puts[3:]] == [True] * 3
    assert got(server, 3) == [0, 1, 2]
    assert [full(put) for put in puts[:3]] == [False] * 3


def test_what_the_sender_has_no_room_for_is_told(world: World) -> None:
    """Row "send queue unbounded": what is put beyond `queue_size` fails at once with QueueFull."""
    client = world.client(queue_size=3)
    puts = [client.put(number) for number in range(5)]
    assert [full(put) for put in puts[3:]] == [True] * 2
    server = world.server()
    assert [server.get().data for _ in range(3)] == [0, 1, 2]
    assert [put.result() for put in puts[:3]] == [None] * 3
    assert client.put(5).result() is None


def test_the_sender_drops_its_oldest(world: World) -> None:
    """Row "drop_oldest" at the sender: what has waited longest goes, and its put is told."""
    client = world.client(queue_size=3, full="drop")
    puts = [client.put(number) for number in range(10)]
    assert [full(put) for put in puts[:7]] == [True] * 7
    server = world.server()
    assert [server.get().data for _ in range(3)] == [7, 8, 9]
    assert [full(put) for put in puts[7:]] == [False] * 3


def test_the_sender_drops_its_newest(world: World) -> None:
    """Row "drop_oldest" at the sender: False drops what is put."""
    client = world.client(queue_size=3, full="drop", drop_oldest=False)
    puts = [client.put(number) for number in range(5)]
    assert [full(put) for put in puts[3:]] == [True] * 2
    server = world.server()
    assert [server.get().data for _ in range(3)] == [0, 1, 2]


def test_bytes_are_bounded_at_the_receiver(world: World) -> None:
    """Row "receive bounded only by message count": with `queue_bytes` by bytes too; one of any size always fits."""
    server = world.server(queue_bytes=1000, serialization=BUFFERS)
    client = world.met(serialization=BUFFERS)
    puts = [client.put(bytes(size)) for size in (5000, 1)]
    assert [full(put) for put in puts] == [False, True]
    assert [len(each) for each in got(server, 1)] == [5000]
    puts = [client.put(bytes(size)) for size in (600, 400, 1)]
    assert [full(put) for put in puts] == [False, False, True]
    assert [len(each) for each in got(server, 2)] == [600, 400]


def test_bytes_are_bounded_at_the_sender(world: World) -> None:
    """Row "send queue unbounded": with `queue_bytes` by bytes too; one of any size always fits."""
    client = world.client(queue_bytes=1000, serialization=BUFFERS)
    puts = [client.put(bytes(size)) for size in (5000, 1)]
    assert full(puts[1])
    assert puts[0].cancel()
    puts = [client.put(bytes(size)) for size in (600, 400, 1, 0)]
    assert full(puts[2])
    server = world.server(serialization=BUFFERS)
    assert [len(server.get().data) for _ in range(3)] == [600, 400, 0]


def test_putting_waits_for_room(world: World) -> None:
    """Beyond row "put never blocks": with full="wait" it waits until there is room; asyncio refuses that option."""
    if world.facade == "aio":
        with pytest.raises(ConfigError, match="would block the event loop"):
            world.client(full="wait")
        return
    client = world.client(full="wait", queue_size=2)
    puts = [client.put(number) for number in range(2)]
    putting = in_thread(client.put, 2)
    until(lambda: client.endpoint.has_waiters, "the put to wait")
    assert not putting.done()
    assert puts[0].cancel()
    third = putting.result(PATIENCE)
    server = world.server()
    assert [server.get().data for _ in range(2)] == [1, 2]
    assert third.result() is None


def test_a_message_at_its_bound(world: World) -> None:
    """Row "oversize message is cut": one of `message_size` bytes arrives whole, one of one more is refused by put."""
    server, client = world.pair(message_size=100_000, serialization=BUFFERS)
    for size in (100_000, 99_999, 0):
        client.put(bytes(size)).result()
        assert len(server.get(timeout=0).data) == size
    with pytest.raises(MessageTooLarge, match="100001"):
        client.put(bytes(100_001))
    client.put(b"x").result()
    assert bytes(server.get(timeout=0).data) == b"x"


def test_a_message_above_the_peers_bound(world: World) -> None:
    """Row "oversize message": one that only the other end does not take fails by its future, alone."""
    server = world.server(message_size=1 << 20, serialization=BUFFERS)
    client = world.met(serialization=BUFFERS)
    large, small = client.put(bytes((1 << 20) + 70_000)), client.put(b"x")
    assert isinstance(large.exception(), MessageTooLarge)
    assert small.result() is None
    assert bytes(server.get(timeout=0).data) == b"x"


def test_a_message_of_nothing(world: World) -> None:
    """Row "message_size": a message of no bytes is a message."""
    server, client = world.pair(serialization=BUFFERS)
    client.put(b"").result()
    server.put(b"", client.id).result()
    assert bytes(server.get(timeout=0).data) == b""
    assert bytes(client.get(timeout=0).data) == b""
