"""AMQP's frames: what is encoded is what another library reads, and what is read is what was sent, however it is split."""

from __future__ import annotations

from typing import Any, cast

import pamqp.commands
import pamqp.frame
import pamqp.header
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll.bus.engines.amqp.wire import (
    HEARTBEAT,
    Content,
    Frames,
    Method,
    Properties,
    carries,
    encode,
    encode_content,
)
from redpoll.errors import ProtocolError, UsageError

_texts = st.text(st.characters(codec="utf-8"), max_size=20)
_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False),
        _texts,
        st.binary(max_size=9),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=8,
)
_tables = st.dictionaries(_texts, _values, max_size=4)
_properties = st.builds(
    Properties,
    content_type=st.none() | _texts,
    content_encoding=st.none() | _texts,
    headers=st.none() | _tables,
    delivery_mode=st.none() | st.integers(1, 2),
    priority=st.none() | st.integers(0, 255),
    correlation_id=st.none() | _texts,
    reply_to=st.none() | _texts,
    expiration=st.none() | _texts,
    message_id=st.none() | _texts,
    timestamp=st.none() | st.integers(0, 2**63),
    type=st.none() | _texts,
    user_id=st.none() | _texts,
    app_id=st.none() | _texts,
)


def _delivered(properties: Properties, body: bytes, frame_max: int = 4_096) -> bytes:
    """Return the bytes of a delivery, which has the frames of a publish but for the first."""
    publish = encode(1, "basic.publish", 0, "e", "k", 0)
    sent = b"".join(encode_content(1, "e", "k", 0, properties, body, frame_max))
    return encode(1, "basic.deliver", "tag", 7, 1, "e", "k") + sent[len(publish) :]


@pytest.mark.parametrize(
    ("properties", "name"),
    [
        (Properties(type="é" * 128), "type"),
        (Properties(user_id="\ud800"), "user_id"),
        (Properties(expiration=cast("str", 5)), "expiration"),
        (Properties(priority=300), "priority"),
        (Properties(content_type="text/plain", headers={"a": object()}), "headers"),
        (Properties(headers={"n" * 256: 1}), "headers"),
        (Properties(app_id="a", headers={"a": 2**63}), "headers"),
    ],
)
def test_what_amqp_cannot_carry_is_named(properties: Properties, name: str) -> None:
    """A property that does not fit is an error that names it, and what would fit."""
    with pytest.raises(UsageError, match=f"a message cannot be sent with this {name}: .* at most 255 bytes"):
        encode_content(1, "e", "k", 0, properties, b"", 4_096)
    with pytest.raises(UsageError, match=r"basic\.publish cannot be sent: .* at most 255 bytes"):
        encode_content(1, "e", "k" * 256, 0, Properties(), b"", 4_096)


@given(_properties, st.binary(max_size=9_000), st.data())
def test_message_comes_back_however_it_is_split(properties: Properties, body: bytes, data: st.DataObject) -> None:
    """A message that is read in any pieces, with something behind it, is the one that was sent."""
    sent = _delivered(properties, body) + HEARTBEAT
    cuts = data.draw(st.lists(st.integers(0, len(sent)), max_size=5).map(sorted))
    frames, found = Frames(4_096), []
    for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        found += frames.feed(sent[start:end])
    assert found == [
        Content(1, "basic.deliver", ("tag", 7, 1, "e", "k"), properties, body),
        Method(0, "heartbeat", ()),
    ]


def test_message_is_read_byte_by_byte() -> None:
    """A message that arrives byte by byte is complete with its last one."""
    sent = _delivered(Properties(message_id="m"), b"body")
    frames = Frames()
    assert [frames.feed(sent[at : at + 1]) for at in range(len(sent) - 1)] == [[]] * (len(sent) - 1)
    (found,) = frames.feed(sent[-1:])
    assert isinstance(found, Content)
    assert found.body == b"body"


@given(_tables)
def test_another_library_reads_the_headers(table: dict[str, Any]) -> None:
    """The frames that are encoded here are read by pamqp, and none is larger than the server allows."""
    names = dict(table)
    sent = b"".join(encode_content(3, "e", "k", 1, Properties(headers=names, delivery_mode=2), b"x" * 5_000, 4_096))
    body = b""
    while sent:
        size, channel, frame = pamqp.frame.unmarshal(sent)
        assert (channel, size <= 4_096) == (3, True)
        if isinstance(frame, pamqp.commands.Basic.Publish):
            assert (frame.exchange, frame.routing_key, frame.mandatory) == ("e", "k", True)
        elif isinstance(frame, pamqp.header.ContentHeader):
            assert (frame.properties.delivery_mode, frame.body_size) == (2, 5_000)
            assert frame.properties.headers == names or not names
        else:
            body += frame.value  # type: ignore[union-attr]
        sent = sent[size:]
    assert body == b"x" * 5_000


@pytest.mark.parametrize(
    ("method", "name", "arguments"),
    [
        (pamqp.commands.Queue.DeclareOk("q", 3, 2), "queue.declare-ok", ("q", 3, 2)),
        (pamqp.commands.Basic.Nack(9, True), "basic.nack", (9, 3)),
        (pamqp.commands.Basic.Return(312, "NO_ROUTE", "e", "k"), "", ()),
        (pamqp.commands.Channel.Close(406, "text", 50, 10), "channel.close", (406, "text", 50, 10)),
        (pamqp.commands.Connection.Blocked("low on memory"), "connection.blocked", ("low on memory",)),
        (pamqp.commands.Connection.Tune(2047, 131072, 60), "connection.tune", (2047, 131072, 60)),
    ],
)
def test_methods_of_another_library_are_read(
    method: pamqp.frame.FrameTypes, name: str, arguments: tuple[Any, ...]
) -> None:
    """Methods that pamqp encodes are read; one that a message follows waits for that."""
    expected = [Method(2, name, arguments)] if name else []
    assert Frames().feed(pamqp.frame.marshal(method, 2)) == expected


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"AMQP\0\1\0\0", "the server speaks"),
        (b"\x01\0\1\0\0\0\4\0\0\0\0\xce", "unknown method"),
        (b"\x01\0\1\xff\xff\xff\xff\0", "the limit is"),
        (b"\x08\0\0\0\0\0\0\0", "does not end"),
        (b"\x02\0\1\0\0\0\0\xce", "unexpected frame"),
        (b"\x01\0\1\0\0\0\x05\0\x32\0\x0b\x09\xce", "shorter than its contents"),
    ],
)
def test_other_bytes_are_an_error(data: bytes, problem: str) -> None:
    """Bytes that are no AMQP 0-9-1 raise an error that names the problem."""
    with pytest.raises(ProtocolError, match=problem):
        Frames().feed(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Any bytes behind the head of a delivery are read, awaited, or a `ProtocolError`."""
    frames = Frames(4_096)
    frames.feed(encode(1, "basic.deliver", "tag", 7, 1, "e", "k"))
    try:
        frames.feed(b"\x02\0\1" + len(data).to_bytes(4, "big") + data + b"\xce")
    except ProtocolError:
        pass


@pytest.mark.parametrize("value", [2**63, (1,), {1: "a"}, {"k" * 200: 1}, "\ud800", object(), {"a": [{"b": {2}}]}])
def test_what_a_table_does_not_hold_is_known(value: object) -> None:
    """Values that a table of AMQP cannot hold, or gives back as others, are told apart."""
    assert not carries(value)


@given(_values)
def test_what_a_table_holds_is_known(value: object) -> None:
    """Values of the types that a table has are carried."""
    assert carries(value)
