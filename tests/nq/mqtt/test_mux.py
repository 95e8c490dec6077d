"""The links on one connection: what they send goes out in turn and within bounds, what comes is judged by its number."""

from __future__ import annotations

import asyncio

import pytest

from redpoll.address import Address
from redpoll.errors import ProtocolError
from redpoll.nq.mqtt.link import CHARGE, MqttLink
from redpoll.nq.mqtt.mux import CHUNK, TOTAL, WINDOW, Mux
from redpoll.nq.mqtt.payloads import HEADER, KEY, Kind, Payload, pack, read
from tests.nq.mqtt.support import Reader

pytestmark = pytest.mark.asyncio

THERE = Address("tcp", "127.0.0.1", 1)


class Pipe:
    """A broker that takes so many payloads, and keeps them."""

    def __init__(self, room: int = 1_000_000) -> None:
        self.room = room
        self.published: list[tuple[str, bytes]] = []

    @property
    def ready(self) -> bool:
        """Whether there is room."""
        return self.room > 0

    def publish(self, topic: str, payload: bytes) -> None:
        """Keep it."""
        self.room -= 1
        self.published.append((topic, payload))

    def payloads(self, topic: str | None = None) -> list[Payload]:
        """What was published there, or anywhere; it is taken."""
        found, self.published = self.published, []
        read_again = [read(payload) for where, payload in found if topic is None or where == topic]
        return [each for each in read_again if each is not None]


class Links:
    """A mux with some links."""

    def __init__(
        self, count: int, *, everybody: str | None = "all", size: int = 1 << 24, allowed: int = WINDOW
    ) -> None:
        self.pipe = Pipe()
        self.emptied = 0
        self.mux = Mux(self.pipe, asyncio.get_running_loop(), size, everybody, self._empty)
        self.links: list[MqttLink] = []
        self.readers: list[Reader] = []
        for index in range(count):
            link = MqttLink(bytes([index + 1] * KEY), f"client {index}", f"to/{index}")
            link.flow.allow(allowed)
            self.mux.add(link)
            self.links.append(link)
            self.readers.append(Reader())
            link.flow.tell(self.mux.window)
            self.mux.begin(link, self.readers[-1], THERE)

    def _empty(self) -> None:
        self.emptied += 1

    def write(self, data: bytes, index: int = 0) -> None:
        """Write to one of them."""
        transport = self.links[index].transport
        assert transport is not None
        transport.write(data)

    def came(self, kind: Kind, number: int, data: bytes = b"", *, index: int = 0, allowed: int = 0) -> None:
        """A payload came for one of them."""
        payload = read(pack(kind, self.links[index].key, number, allowed) + data)
        assert payload is not None
        self.mux.came(self.links[index].client, payload)


async def settle() -> None:
    """Let all that is scheduled happen."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_bytes_go_out_numbered() -> None:
    """What is written in one turn goes in one payload, the next in the next."""
    one = Links(1)
    one.write(b"a")
    one.write(b"b")
    await settle()
    one.write(b"c")
    await settle()
    assert [(each.kind, each.number, bytes(each.data)) for each in one.pipe.payloads("to/0")] == [
        (Kind.BYTES, 0, b"ab"),
        (Kind.BYTES, 1, b"c"),
    ]


async def test_a_large_body_goes_in_pieces() -> None:
    """None is larger than a chunk and what is small beside it, nor than transport_size."""
    body = bytes(range(256)) * 1024
    for size, chunk in ((1 << 24, CHUNK), (4096, 4096), (0, 1024)):
        one = Links(1, size=size, allowed=1 << 30)
        one.write(b"small")
        one.write(body)
        await settle()
        published = one.pipe.payloads()
        assert b"".join(each.data for each in published) == b"small" + body
        assert max(len(each.data) for each in published) <= chunk + (5 if chunk == CHUNK else -HEADER.size)


@pytest.mark.parametrize("size", [1024, 4096, 1 << 24])
async def test_small_parts_before_a_large_one_count(size: int) -> None:
    """Together they keep to transport_size too."""
    one = Links(1, size=size, allowed=1 << 30)
    parts = [bytes([number]) * 200 for number in range(7)]
    parts.append(bytes(3 * CHUNK))
    for part in parts:
        one.write(part)
    await settle()
    published = one.pipe.payloads()
    assert b"".join(each.data for each in published) == b"".join(parts)
    assert max(len(each.data) for each in published) <= min(size, 2 * CHUNK + HEADER.size) - HEADER.size


async def test_no_more_goes_out_than_is_allowed() -> None:
    """What waits goes on when the other end allows more."""
    one = Links(1, allowed=2 * CHUNK)
    one.write(bytes(10 * CHUNK))
    await settle()
    assert len(one.pipe.payloads()) == 2
    one.came(Kind.CREDIT, 0, allowed=5 * CHUNK)
    await settle()
    assert len(one.pipe.payloads()) == 3


async def test_nothing_is_taken_while_the_broker_takes_nothing() -> None:
    """It waits in the transport, whose writer is paused; `flush` goes on."""
    one = Links(1)
    one.pipe.room = 1
    one.write(bytes(3 * CHUNK))
    await settle()
    transport = one.links[0].transport
    assert transport is not None
    assert transport.get_write_buffer_size() == 2 * CHUNK
    one.pipe.room = 5
    one.mux.flush()
    assert transport.get_write_buffer_size() == 0


async def test_what_comes_is_read_in_order() -> None:
    """One that is doubled is dropped."""
    one = Links(1)
    one.came(Kind.BYTES, 0, b"a")
    one.came(Kind.BYTES, 0, b"a")
    one.came(Kind.BYTES, 1, b"b")
    one.came(Kind.BYTES, 0, b"a")
    assert one.readers[0].got == b"ab"
    assert one.readers[0].lost == []


async def test_a_missing_payload_ends_the_link() -> None:
    """At once, with an error that says so, at the other end too; nothing behind it is read."""
    one = Links(2)
    one.came(Kind.BYTES, 0, b"a")
    one.came(Kind.BYTES, 2, b"c")
    one.came(Kind.BYTES, 1, b"b")
    await settle()
    assert one.readers[0].got == b"a"
    assert "1 payloads of it were lost" in str(one.readers[0].lost)
    assert [each.kind for each in one.pipe.payloads("to/0")] == [Kind.CLOSE]
    assert list(one.mux.links.values()) == one.links[1:]


async def test_the_other_end_is_told_what_was_read() -> None:
    """With the next bytes, or alone once it is a quarter of the window."""
    one = Links(1)
    told = one.links[0].flow.told
    assert told == WINDOW
    one.came(Kind.BYTES, 0, b"a")
    one.write(b"x")
    await settle()
    assert [(each.kind, each.allowed) for each in one.pipe.payloads()] == [(Kind.BYTES, told + CHARGE)]
    for number in range(1, 1 + WINDOW // CHUNK // 4):
        assert one.pipe.payloads() == []
        one.came(Kind.BYTES, number, bytes(CHUNK))
        await settle()
    assert [(each.kind, each.allowed) for each in one.pipe.payloads()] == [(Kind.CREDIT, told + CHARGE + WINDOW // 4)]


async def test_who_does_not_read_gets_no_more() -> None:
    """What came and waits is not given back until it is read."""
    one = Links(1)
    transport = one.links[0].transport
    assert transport is not None
    transport.pause_reading()
    for number in range(WINDOW // CHUNK):
        one.came(Kind.BYTES, number, bytes(CHUNK))
    await settle()
    assert one.pipe.payloads() == []
    transport.resume_reading()
    await settle()
    assert [each.allowed for each in one.pipe.payloads()] == [2 * WINDOW]


async def test_who_sends_more_than_is_allowed_is_ended() -> None:
    """What waits to be read has its bound whatever the other end makes of what it is told."""
    one = Links(1)
    transport = one.links[0].transport
    assert transport is not None
    transport.pause_reading()
    for number in range(WINDOW // CHUNK):
        one.came(Kind.BYTES, number, bytes(CHUNK))
    assert transport.unread == WINDOW
    one.came(Kind.BYTES, WINDOW // CHUNK, b"x")
    await settle()
    assert transport.unread == WINDOW
    assert [type(error) for error in one.readers[0].lost] == [ProtocolError]
    assert [each.kind for each in one.pipe.payloads()] == [Kind.CLOSE]
    assert not one.mux.links


async def test_many_links_share_what_may_be_under_way() -> None:
    """Each has a smaller window, and all the same room for a payload."""
    assert Links(1).mux.window == WINDOW
    assert Links(4).mux.window == TOTAL // 4
    assert Links(200).mux.window == CHUNK


async def test_a_body_for_all_goes_once() -> None:
    """Piece by piece to the topic of all, and what is for one to that one's."""
    three = Links(3)
    body = bytes(range(256)) * 1024
    for index in range(3):
        three.write(b"frame %d" % index, index)
        three.write(body, index)
    three.write(b"for one alone", 1)
    await settle()
    topics = [topic for topic, _ in three.pipe.published]
    assert topics == ["all"] * (len(body) // CHUNK) + ["to/1"]


async def test_what_is_shared_is_read_by_each() -> None:
    """The other end finds its bytes, in its order."""
    server = Links(3)
    client = Links(1, everybody=None)
    for _ in range(2):
        for index in range(3):
            server.write(b"%d: the same body" % index, index)
        await settle()
    assert [topic for topic, _ in server.pipe.published] == ["all", "all"]
    for payload in server.pipe.payloads():
        client.mux.came_shared(payload)
    assert client.readers[0].got == b"0: the same body" * 2


async def test_closing_waits_for_what_was_written() -> None:
    """Then the other end is told, and both ends are over, with no error."""
    one = Links(1)
    one.pipe.room = 1
    one.write(bytes(CHUNK + 1))
    transport = one.links[0].transport
    assert transport is not None
    transport.close()
    await settle()
    assert (one.emptied, one.readers[0].lost) == (0, [])
    one.pipe.room = 3
    one.mux.flush()
    await settle()
    assert [each.kind for each in one.pipe.payloads()] == [Kind.BYTES, Kind.BYTES, Kind.CLOSE]
    assert (one.emptied, one.readers[0].lost) == (1, [None])


@pytest.mark.parametrize("room", [0, 5])
async def test_aborting_waits_for_nothing(room: int) -> None:
    """The other end is told, before what waits, and this one is over, whether the broker takes more now or not."""
    one = Links(1)
    one.pipe.room = 0
    one.write(bytes(CHUNK))
    await settle()
    one.pipe.room = room
    transport = one.links[0].transport
    assert transport is not None
    transport.abort()
    await settle()
    assert [each.kind for each in one.pipe.payloads()] == [Kind.CLOSE]
    assert (one.emptied, one.readers[0].lost) == (1, [None])


async def test_a_close_from_there_ends_the_link() -> None:
    """With no error, unless something before it is missing."""
    two = Links(2)
    two.came(Kind.CLOSE, 0)
    two.came(Kind.CLOSE, 1, index=1)
    await settle()
    assert two.readers[0].lost == [None]
    assert "lost at the MQTT broker" in str(two.readers[1].lost)
    assert two.emptied == 1


async def test_ending_inside_a_read_is_the_end() -> None:
    """A protocol that hangs up on what it reads is told once, and reads no more."""
    one = Links(1)
    transport = one.links[0].transport
    assert transport is not None
    one.readers[0].act = transport.abort
    one.came(Kind.BYTES, 0, b"bad")
    one.came(Kind.BYTES, 1, b"more")
    await settle()
    assert one.readers[0].got == b"bad"
    assert one.readers[0].lost == [None]


async def test_strange_payloads_are_dropped() -> None:
    """Payloads for no link, from another client than the link's, or of a kind that is not for links change nothing."""
    one = Links(1)
    for client, kind, key in (
        ("client 0", Kind.BYTES, b"nobodys!"),
        ("client 1", Kind.BYTES, one.links[0].key),
        ("client 0", Kind.CLAIM, one.links[0].key),
    ):
        payload = read(pack(kind, key) + b"strange")
        assert payload is not None
        one.mux.came(client, payload)
    assert one.readers[0].got == b""
    assert not one.readers[0].lost


async def test_strangers_are_not_answered_without_end() -> None:
    """While the broker takes nothing, answers do not heap up."""
    one = Links(0)
    one.pipe.room = 0
    for _ in range(5000):
        one.mux.say("to/stranger", b"no")
    await settle()
    one.pipe.room = 10_000
    one.mux.flush()
    assert len(one.pipe.published) == 1000


async def test_all_links_of_a_client_end_together() -> None:
    """Those of others stay."""
    three = Links(3)
    three.mux.end_all("it is gone", "client 1")
    await settle()
    assert [len(reader.lost) for reader in three.readers] == [0, 1, 0]
    three.mux.end_all("all are gone")
    await settle()
    assert "all are gone" in str(three.readers[0].lost)
    assert three.emptied == 1
