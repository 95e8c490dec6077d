"""The contract of every serializer; one suite, run over all of them and over a user's."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll.errors import DecodeError, EncodeError
from redpoll.serializers import (
    Buffer,
    BufferSerializer,
    JsonSerializer,
    MsgpackSerializer,
    PickleSerializer,
    RawSerializer,
    Serializer,
    get,
)


class Upper:
    """A user's serializer: text in capitals."""

    name = "upper"
    wants_buffer = False

    def encode(self, obj: str, /) -> bytes:
        """Text as UTF-8."""
        try:
            return obj.encode()
        except (AttributeError, UnicodeEncodeError) as error:
            raise EncodeError(self.name, "no text") from error

    def decode(self, data: Buffer, /) -> str:
        """UTF-8 as text."""
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise DecodeError(self.name, "no text") from error


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=4)),
    max_leaves=12,
)
# Zones of one offset: Python calls no two times equal while one of them is in the hour that a zone has twice.
ZONES = st.builds(timezone, st.timedeltas(timedelta(hours=-23), timedelta(hours=23)))
TIMES = st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31), timezones=ZONES)  # noqa: DTZ001 - limits have no zone
MSGPACK = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False),
        TEXT,
        st.binary(max_size=20),
        TIMES,
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(TEXT, st.binary(max_size=5)), inner, max_size=4)
    ),
    max_leaves=12,
)


@dataclass(frozen=True)
class Case:
    """A serializer, the values it carries, and one that it does not."""

    serializer: Serializer[Any]
    values: st.SearchStrategy[Any]
    alien: object


CASES = {
    case.serializer.name: case
    for case in (
        Case(RawSerializer(), st.binary(max_size=200), "text"),
        Case(BufferSerializer(), st.binary(max_size=200), "text"),
        Case(MsgpackSerializer(), MSGPACK, object()),
        Case(JsonSerializer(), JSON, object()),
        Case(PickleSerializer(), st.one_of(JSON, MSGPACK), (each for each in "ab")),
        Case(Upper(), TEXT, 5),
    )
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    """Each serializer in turn."""
    return CASES[request.param]


names = pytest.mark.parametrize("name", CASES)


@names
@given(data=st.data())
def test_values_come_back(name: str, data: st.DataObject) -> None:
    """An encoded value is decoded into an equal one, from any kind of buffer."""
    case = CASES[name]
    value = data.draw(case.values)
    encoded = bytes(case.serializer.encode(value))
    for buffer in (encoded, bytearray(encoded), memoryview(encoded), memoryview(bytearray(encoded))):
        assert case.serializer.decode(buffer) == value


@names
@given(data=st.data())
def test_arbitrary_bytes_give_a_value_or_a_decode_error(name: str, data: st.DataObject) -> None:
    """No bytes make decode raise anything else, and the error carries the serializer's name."""
    serializer = CASES[name].serializer
    junk = data.draw(st.binary(max_size=60))
    try:
        serializer.decode(junk)
    except DecodeError as error:
        refused = error
    else:
        return
    assert refused.serializer == name
    assert refused.problem


@names
@given(data=st.data())
def test_damaged_bytes_give_a_value_or_a_decode_error(name: str, data: st.DataObject) -> None:
    """A valid encoding with one byte changed, cut short, or with more behind it does not escape either."""
    case = CASES[name]
    encoded = bytearray(bytes(case.serializer.encode(data.draw(case.values))))
    at = data.draw(st.integers(0, len(encoded)))
    damaged = data.draw(
        st.sampled_from([encoded[:at], encoded + b"\x00", encoded[:at] + b"\xc1" + encoded[at + 1 :]]), label="damaged"
    )
    try:
        case.serializer.decode(bytes(damaged))
    except DecodeError as error:
        refused = error
    else:
        return
    assert refused.serializer == name


def test_what_cannot_be_carried_is_an_encode_error(case: Case) -> None:
    """A value of another kind raises EncodeError with the serializer's name and the cause."""
    with pytest.raises(EncodeError) as caught:
        case.serializer.encode(case.alien)
    assert caught.value.serializer == case.serializer.name
    assert caught.value.problem


def test_it_is_a_serializer(case: Case) -> None:
    """Each has what the protocol asks for."""
    assert isinstance(case.serializer, Serializer)
    assert isinstance(case.serializer.name, str)
    assert isinstance(case.serializer.wants_buffer, bool)
    assert get(case.serializer) is case.serializer


def test_encoded_bytes_are_flat(case: Case) -> None:
    """The result is bytes, bytearray or a memoryview of bytes, so that len() counts bytes."""
    value = b"ab" if case.alien == "text" else "ab"
    encoded = case.serializer.encode(value)
    assert isinstance(encoded, bytes | bytearray | memoryview)
    assert len(encoded) == len(bytes(encoded))


def test_threads_can_share_it(case: Case) -> None:
    """One object serves several threads at the same time."""
    values = [b"x" * size if case.alien == "text" else "x" * size for size in range(200)]
    wrong: list[object] = []

    def work() -> None:
        wrong.extend(value for value in values if case.serializer.decode(bytes(case.serializer.encode(value))) != value)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("name", ["msgpack", "json"])
def test_what_holds_itself_or_is_too_deep_is_an_encode_error(name: str) -> None:
    """A list in itself, or nested deeper than can be written, is no crash."""
    loop: list[Any] = []
    loop.append(loop)
    deep: list[Any] = []
    for _ in range(200_000):
        deep = [deep]
    for value in (loop, deep):
        with pytest.raises(EncodeError):
            get(name).encode(value)


@pytest.mark.parametrize(("name", "opening"), [("msgpack", b"\x91"), ("json", b"[")])
def test_data_that_is_too_deep_is_a_decode_error(name: str, opening: bytes) -> None:
    """A peer cannot exhaust the stack by nesting."""
    with pytest.raises(DecodeError):
        get(name).decode(opening * 1_000_000)


@pytest.mark.parametrize("name", ["msgpack", "json"])
def test_floats_are_exact(name: str) -> None:
    """A float survives bit for bit, the negative zero too."""
    serializer = get(name)
    assert math.copysign(1, serializer.decode(bytes(serializer.encode(-0.0)))) == -1
    assert serializer.decode(bytes(serializer.encode(0.1 + 0.2))) == 0.1 + 0.2
