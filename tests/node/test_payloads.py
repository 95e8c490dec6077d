"""What messages carry, end to end: each serializer, small bodies and large ones, in sends, requests and answers."""

from __future__ import annotations

import array
import asyncio
import datetime as dt
from typing import Any

import pytest

from redpoll import DecodeError, EncodeError, HandlerFailed, Message, Received, Undecodable
from redpoll.serializers import Buffer, PickleSerializer, RawSerializer
from tests.node.support import Inbox, make, to, until, within

SMALL, LARGE, FRAGMENTED = 100, 300_000, 5_000_000

#: Values of about a size, for each serializer.
VALUES: dict[str, Any] = {
    "raw": lambda size: (bytes(range(256)) * (size // 256 + 1))[:size],
    "buffer": lambda size: bytearray((bytes(range(256)) * (size // 256 + 1))[:size]),
    "msgpack": lambda size: {"name": "value", "list": [1, -2.5, None, True, "ä"], "bytes": bytes(size)},
    "json": lambda size: {"name": "value", "list": [1, -2.5, None, True, "ä"], "text": "ü" * (size // 2)},
    "pickle": lambda size: {
        "tuple": (1, -2.5, None, {True}, "ä"),
        "bytes": bytes(size),
        "array": array.array("B", bytes(size)),
    },
}

each_serializer = pytest.mark.parametrize("serializer", VALUES)
each_size = pytest.mark.parametrize("size", [0, SMALL, LARGE, FRAGMENTED])


@pytest.mark.asyncio
@each_serializer
@each_size
async def test_values_arrive_as_they_are(serializer: str, size: int) -> None:
    """What is sent arrives in a handler, and what the handler returns arrives as the answer."""
    value = VALUES[serializer](size)
    inbox: list[Any] = []

    def handler(message: Received[Any]) -> Any:
        inbox.append(message.data)
        return message.data

    async with make(handler, serializer=serializer) as server, make(serializer=serializer) as client:
        answer = await within(client.request(to(server, value, header=b"header")))
        await within(client.send(to(server, value)))
        await within(client.send(to(server, value), acknowledge=False))
        assert inbox[0] == value
        assert answer.data == value
        assert type(answer.data) is {"raw": bytes, "buffer": memoryview}.get(serializer, dict)


@pytest.mark.asyncio
@each_serializer
@each_size
async def test_values_are_pulled_as_they_are(serializer: str, size: int) -> None:
    """What is sent arrives decoded in each way of pulling, and so does what is responded."""
    value = VALUES[serializer](size)
    async with make(serializer=serializer, slots=4) as server, make(serializer=serializer) as client:
        asking = client.request(to(server, value))
        async with server.take(timeout=5) as message:
            assert message.data == value
            await message.respond(message.data)
        assert (await within(asking)).data == value
        sends = [client.send(to(server, value)) for _ in range(2)]
        async for message in server:
            assert message.data == value
            message.release()
            break
        async for batch in server.batches():
            assert batch[0].data == value
            batch[0].release()
            break
        await within(asyncio.gather(*sends))


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [SMALL, LARGE, FRAGMENTED])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: array.array("I", data)])
async def test_raw_gives_bytes_whatever_was_sent(size: int, kind: Any) -> None:
    """With `raw` anything with a buffer can be sent, and bytes come, small and large."""
    data = VALUES["raw"](size // 4 * 4)
    inbox = Inbox()
    async with make(inbox) as server, make() as client:
        await within(client.send(to(server, kind(data))))
    assert type(inbox.begun[0]) is bytes
    assert inbox.begun[0] == data


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [0, SMALL, LARGE, FRAGMENTED])
async def test_buffer_gives_memory_that_can_be_written(size: int) -> None:
    """With `buffer` a writable memoryview of bytes comes, of memory that is nobody else's."""
    held: list[Any] = []

    def handler(message: Received[Any]) -> None:
        held.append(message.data)

    async with make(handler, serializer="buffer") as server, make(serializer="buffer") as client:
        for number in range(4):
            await within(client.send(to(server, bytes([number]) * size)))
        for number, view in enumerate(held):
            assert type(view) is memoryview
            assert (view.readonly, view.format, len(view)) == (False, "B", size)
            assert bytes(view) == bytes([number]) * size
            view[:] = bytes(size)
        assert all(bytes(view) == bytes(size) for view in held)


@pytest.mark.asyncio
@each_serializer
@pytest.mark.parametrize("acknowledge", [True, False])
async def test_data_stays_after_the_end(serializer: str, acknowledge: bool) -> None:
    """The data of a message that has ended does not change, whatever comes afterwards."""
    held: list[Any] = []

    def handler(message: Received[Any]) -> None:
        message.release()
        held.append(message.data)

    values = [VALUES[serializer](size) for size in (LARGE, LARGE + 1, FRAGMENTED, LARGE + 2, SMALL, FRAGMENTED + 1)] * 2
    async with make(handler, serializer=serializer) as server, make(serializer=serializer) as client:
        count = await within(client.send_many((to(server, value) for value in values), acknowledge=acknowledge))
        assert count == len(values)
        await within(client.send(to(server, values[0])))
    # Large ones arrive behind small ones that were sent later.
    sent = [*values, values[0]]
    for value in held:
        sent.remove(value)
    assert not sent


@pytest.mark.asyncio
async def test_msgpack_carries_times_and_bytes() -> None:
    """MessagePack brings aware datetimes in UTC, bytes as bytes, and tuples as lists."""
    moment = dt.datetime(2024, 2, 29, 12, 30, 0, 250_000, tzinfo=dt.UTC)
    inbox = Inbox()
    async with make(inbox, serializer="msgpack") as server, make(serializer="msgpack") as client:
        await within(client.send(to(server, [moment, b"bytes", (1, 2), bytearray(b"array")])))
    assert inbox.begun == [[moment, b"bytes", [1, 2], b"array"]]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("serializer", "value"),
    [("raw", "text"), ("raw", {}), ("buffer", 7), ("msgpack", object()), ("json", b"bytes"), ("json", float("nan"))],
)
async def test_what_cannot_be_carried_is_an_encode_error(serializer: str, value: Any) -> None:
    """A value that the serializer cannot carry raises where it is sent, and refuses where it is returned."""
    async with make(lambda message: value, serializer=serializer) as server, make(serializer=serializer) as client:
        with pytest.raises(EncodeError, match=f"{serializer} cannot encode"):
            client.send(to(server, value))
        fine = VALUES[serializer](SMALL)
        with pytest.raises(HandlerFailed, match=f"EncodeError: {serializer} cannot encode"):
            await within(client.request(to(server, fine)))
        await within(client.send(to(server, fine)))


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("serializer", ["json", "msgpack"])
async def test_both_ends_need_the_same_serializer(serializer: str, size: int, caplog: pytest.LogCaptureFixture) -> None:
    """Bytes that are not the serializer's are refused as Undecodable; an answer that cannot be read is a DecodeError."""
    garbage = b"\xc1" * size
    async with (
        make(lambda message: garbage, serializer=RawSerializer("any")) as other,
        make(lambda message: None, serializer=serializer) as reader,
    ):
        with pytest.raises(Undecodable, match=f"{serializer} cannot decode"):
            await within(other.send(to(reader, garbage)))
        with pytest.raises(DecodeError, match=f"{serializer} cannot decode"):
            await within(reader.request(to(other, VALUES[serializer](SMALL))))
        assert other.stats().reconnects == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [1, LARGE, FRAGMENTED])
@pytest.mark.parametrize(
    ("theirs", "ours"), [("raw", "msgpack"), ("buffer", "json"), ("json", "pickle"), ("msgpack", "json")]
)
async def test_serializers_that_differ_are_named(
    theirs: str, ours: str, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """What another serializer made is not read, though it might be by chance: sender and log are told both names."""
    inbox = Inbox()
    value = VALUES[theirs](size)
    made_by = theirs.replace("buffer", "raw")
    async with make(inbox, serializer=ours) as server, make(serializer=theirs) as client:
        for call in (client.send, client.request):
            with pytest.raises(Undecodable) as caught:
                await within(call(to(server, value)))
            assert str(caught.value) == (
                f"message to {server.address} was refused: the peer cannot decode the data: encoded with {made_by},"
                f" but this node decodes {ours} (both nodes need the same serializer)"
            )
        # Those that nobody is told of give their places back.
        count = 2 * client.config.effective_window if size == 1 else 3
        assert await within(client.send_many([to(server, value)] * count, acknowledge=False)) == count
        await until(lambda: server.stats().refused == count + 2, "the refusals")
        assert (server.stats().slots_used, server.stats().memory_held) == (0, 0)
        (peer,) = server.peers
    assert not inbox.begun
    assert (
        f"refused messages of {peer.address}: encoded with {made_by}, but this node decodes {ours}" in caplog.messages
    )


@pytest.mark.asyncio
async def test_serializers_that_differ_are_named_for_an_answer() -> None:
    """An answer of a node with another serializer that cannot be read names that one."""
    async with make(lambda message: b"pong") as server, make(serializer="json") as client:
        with pytest.raises(DecodeError) as caught:
            await within(client.request(to(server, [1])))
        assert caught.value.hint == "the peer's serializer is raw: both nodes need the same"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("raw", "buffer"),
        ("buffer", "raw"),
        ("json", "raw"),
        (RawSerializer("any"), "json"),
        ("pickle", PickleSerializer()),
    ],
)
async def test_serializers_that_may_differ(theirs: Any, ours: Any) -> None:
    """A node that carries bytes reads any; another name, and a serializer with options, are not refused."""
    inbox = Inbox(answer=b"[2]" if ours in {"raw", "buffer"} else [2])
    async with make(inbox, serializer=ours) as server, make(serializer=theirs) as client:
        value = b"[1]" if isinstance(theirs, RawSerializer) or theirs in {"raw", "buffer"} else [1]
        answer = await within(client.request(to(server, value)))
        assert bytes(answer.data) == b"[2]" if type(value) is bytes else answer.data == [2]


class Upper:
    """A serializer of one's own: text in capitals."""

    name = "upper"
    wants_buffer = False

    def encode(self, value: str, /) -> Buffer:
        return value.upper().encode()

    def decode(self, data: Any, /) -> str:
        assert type(data) is bytes
        return data.decode()


class Sized(Upper):
    """One that wants large bodies as the memory that they were received into."""

    name = "sized"
    wants_buffer = True

    def encode(self, value: str, /) -> Buffer:
        return memoryview(value.encode())

    def decode(self, data: Any, /) -> str:
        assert type(data) is (memoryview if len(data) > 65_536 else bytearray)
        assert not isinstance(data, memoryview) or not data.readonly
        return f"{type(data).__name__} of {len(data)}"


@pytest.mark.asyncio
async def test_a_serializer_may_send() -> None:
    """A serializer that itself fails to send to the same new peer leaves the message that it encodes its peer."""

    class Sending(Upper):
        def encode(self, value: str, /) -> Buffer:
            if value == "outer":
                with pytest.raises(EncodeError):
                    client.send(to(server, "inner"))
            elif value == "inner":
                raise EncodeError(self.name, "not this")
            return super().encode(value)

    inbox = Inbox()
    async with make(inbox, serializer=Upper()) as server, make(serializer=Sending()) as client:
        await within(client.send(to(server, "outer")))
        assert [message.data for message in inbox.messages] == ["OUTER"]
        assert len(client.peers) == 1


@pytest.mark.asyncio
async def test_a_serializer_that_returns_no_bytes() -> None:
    """What has no length is an error of the call, and leaves no peer behind."""

    class Counting(Upper):
        def encode(self, value: str, /) -> Buffer:
            return len(value)  # type: ignore[return-value]  # what a faulty one may return

    async with make(serializer=Counting()) as client:
        with pytest.raises(TypeError):
            client.send(Message("text", "127.0.0.1:1"))
        assert client.peers == ()


@pytest.mark.asyncio
async def test_a_serializer_of_ones_own() -> None:
    """An object with the protocol's four names is a serializer; large bodies come to it as bytes."""
    async with make(lambda message: message.data + "!", serializer=Upper()) as server:
        async with make(serializer=Upper()) as client:
            assert (await within(client.request(to(server, "hello")))).data == "HELLO!"
            large = await within(client.request(to(server, "x" * LARGE)))
            assert large.data == "X" * LARGE + "!"


@pytest.mark.asyncio
async def test_a_serializer_may_want_buffers() -> None:
    """With `wants_buffer` a large body comes to the serializer as a view of its memory, a small one as memory."""
    inbox = Inbox()
    async with make(inbox, serializer=Sized()) as server, make(serializer=Sized()) as client:
        for size in (SMALL, LARGE, FRAGMENTED):
            await within(client.send(to(server, "x" * size)))
    assert inbox.begun == [f"bytearray of {SMALL}", f"memoryview of {LARGE}", f"memoryview of {FRAGMENTED}"]


@pytest.mark.asyncio
@pytest.mark.parametrize("acknowledge", [True, False])
@pytest.mark.parametrize("serializer", ["raw", "buffer", "msgpack", "pickle"])
async def test_a_stream_of_bytes_is_encoded(serializer: str, acknowledge: bool) -> None:
    """Bytes, bytearrays and memoryviews of any size are encoded in a stream as they are in single sends."""
    inbox = Inbox()
    values: list[Any] = [
        kind(bytes([index]) * size)
        for index, size in enumerate([3, 3, 0, SMALL, 600, LARGE, 3])
        for kind in (bytes, bytearray, memoryview)
    ]
    async with make(inbox, serializer=serializer) as server, make(serializer=serializer) as client:
        sent = client.send_many([to(server, value) for value in values], acknowledge=acknowledge, timeout=None)
        assert await within(sent) == len(values)
        await until(lambda: len(inbox.ended) == len(values), "all messages")
    assert inbox.begun == values


@pytest.mark.asyncio
@pytest.mark.parametrize("acknowledge", [True, False])
async def test_each_message_of_a_stream_is_encoded_once(acknowledge: bool) -> None:
    """Also one that shows only once it is encoded that it is too large to be written beside others."""
    encoded: list[int] = []

    class Counting(Upper):
        def encode(self, value: str, /) -> Buffer:
            encoded.append(len(value))
            return super().encode(value)

    inbox = Inbox()
    sizes = [1, 2, LARGE, 3, FRAGMENTED, LARGE, 4]
    async with make(inbox, serializer=Upper()) as server, make(serializer=Counting()) as client:
        sent = client.send_many([to(server, "x" * size) for size in sizes], acknowledge=acknowledge, timeout=None)
        assert await within(sent) == len(sizes)
        await until(lambda: len(inbox.ended) == len(sizes), "all messages")
    # One that comes in fragments is passed by those that do not.
    assert sorted(len(data) for data in inbox.begun) == sorted(sizes)
    assert encoded == sizes


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [0, 65_535])
async def test_headers_arrive_as_they_are(size: int) -> None:
    """A header of any legal size arrives beside small, large and fragmented bodies."""
    inbox = Inbox()
    header = bytes(range(256)) * 256
    async with make(inbox) as server, make() as client:
        for body in (0, SMALL, LARGE, FRAGMENTED):
            await within(client.send(to(server, bytes(body), header=header[:size])))
            await within(client.send(to(server, bytes(body), header=header[:size]), acknowledge=False))
        await within(client.send(to(server, b"last")))
    assert all(message.header == header[:size] for message in inbox.messages[:-1])
    assert [len(message.data) for message in inbox.messages[::2]] == [0, SMALL, LARGE, FRAGMENTED, 4]


@pytest.mark.asyncio
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "unix", "inproc:payloads"])
async def test_every_kind_of_address_carries_all_sizes(host: str, tmp_path: Any) -> None:
    """Over TCP of both families, unix sockets and inside the process the same bodies arrive."""
    where = f"unix:{tmp_path}/socket" if host == "unix" else host
    async with make(lambda message: message.data, host=where) as server, make() as client:
        for size in (0, SMALL, LARGE, FRAGMENTED):
            data = VALUES["raw"](size)
            answer = await within(client.request(Message(data, server.address)))
            assert answer.data == data
