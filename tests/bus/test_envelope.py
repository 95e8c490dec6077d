"""Envelopes: their bytes, their payloads."""

from __future__ import annotations

import pickle as pickling

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll.bus import Envelope, Payloads
from redpoll.bus.envelope import MAX_HEAD, decode, encode
from redpoll.errors import BadPayload, ConfigError, DecodeError, PayloadTooLarge
from redpoll.serializers import MsgpackSerializer, pickle

VALUES = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text() | st.binary()
RECORDS = st.none() | st.dictionaries(st.text(), VALUES | st.lists(VALUES))


@given(st.text(max_size=30), st.binary(), RECORDS, RECORDS)
def test_bytes_round_trip(content_type: str, body: bytes, meta: dict[str, object], headers: dict[str, object]) -> None:
    """Whatever an envelope holds comes out of its bytes again."""
    envelope = Envelope(content_type, body, meta, headers)
    assert decode(bytes(encode(envelope))) == envelope


def test_large_body_is_not_copied() -> None:
    """A large body goes through the bytes as a view, both ways."""
    body = bytes(1_000_000)
    encoded = encode(Envelope("raw", body))
    assert any(piece is body or getattr(piece, "obj", None) is body for piece in getattr(encoded, "pieces", ()))
    data = bytes(encoded)
    assert decode(data).body.obj is data  # type: ignore[union-attr]


@given(st.binary(max_size=60))
def test_any_bytes_are_an_envelope_or_an_error(data: bytes) -> None:
    """Bytes that are no envelope raise DecodeError, and nothing else."""
    try:
        decode(data)
    except DecodeError:
        pass


@given(st.binary(max_size=20), st.data())
def test_cut_bytes_never_give_another_head(body: bytes, data: st.DataObject) -> None:
    """A prefix of an envelope is an error until the head is whole."""
    envelope = Envelope("msgpack", body, {"a": 1})
    whole = bytes(encode(envelope))
    cut = data.draw(st.integers(0, len(whole) - len(body) - 1))
    with pytest.raises(DecodeError):
        decode(whole[:cut])


def test_head_has_a_limit() -> None:
    """Headers above the limit are refused before anything is sent, and by the receiver too."""
    with pytest.raises(PayloadTooLarge):
        encode(Envelope("raw", b"", None, {"a": "x" * MAX_HEAD}))
    with pytest.raises(DecodeError):
        decode(b"\x01" + (MAX_HEAD + 1).to_bytes(4) + bytes(MAX_HEAD + 1))


def test_another_version_is_an_error() -> None:
    """An envelope of a version that is not known is not read."""
    data = bytearray(bytes(encode(Envelope("raw", b""))))
    data[0] = 2
    with pytest.raises(DecodeError, match="version 2"):
        decode(data)


@pytest.mark.parametrize("writer", ["msgpack", "json", "raw"])
def test_every_receiver_reads_the_common_ones(writer: str) -> None:
    """What msgpack, json and raw wrote is read by whoever writes with another one."""
    value = b"x" if writer == "raw" else {"a": [1, None]}
    envelope = Payloads(writer).pack(value)
    assert envelope.content_type == writer
    assert Payloads("msgpack").unpack(envelope) == value


def test_a_body_does_not_change_with_its_value() -> None:
    """The body is the value as it was packed, also where the serializer refers to its memory."""
    value = bytearray(b"x" * 100_000)
    envelope = Payloads("buffer").pack(value)
    value[0] = 0
    assert envelope.body[:1] == b"x"


def test_a_missing_serializer_is_named_with_those_that_are_there() -> None:
    """A payload that nobody here can read names its serializer and the receiver's."""
    envelope = Payloads("pickle").pack([1])
    with pytest.raises(BadPayload, match="'pickle': the receiver has no such serializer, only msgpack, json, raw"):
        Payloads().unpack(envelope)
    assert Payloads(also=["pickle"]).unpack(envelope) == [1]


def test_a_payload_that_cannot_be_read_is_one_error() -> None:
    """A body that its serializer cannot read is a BadPayload that says why."""
    with pytest.raises(BadPayload, match="payload of type 'json'"):
        Payloads().unpack(Envelope("json", b"{"))


def test_one_name_is_one_serializer() -> None:
    """Two serializers of one name cannot be told apart, and are refused."""
    with pytest.raises(ConfigError, match="two serializers"):
        Payloads("pickle", also=[pickle(allow=["builtins.set"])])


def test_payloads_can_be_pickled() -> None:
    """A child process gets the same serializers: known ones by name, one's own as they are."""
    mine = MsgpackSerializer(strict_map_key=False)
    copy = pickling.loads(pickling.dumps(Payloads("json", also=["pickle", mine])))
    assert set(copy.names) == {"msgpack", "json", "raw", "buffer", "pickle"}
    assert copy.pack([1]).content_type == "json"
    assert copy.unpack(Payloads().pack({1: 2})) == {1: 2}
