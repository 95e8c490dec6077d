from __future__ import annotations

import pickle
import pickletools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll.serializers.pickling import opcodes
from redpoll.serializers.pickling.opcodes import OpcodeError, check

ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**80), 2**80),
    st.floats(allow_nan=False),
    st.text(max_size=40),
    st.binary(max_size=300),
)
KEYS = st.recursive(
    ATOMS, lambda inner: st.one_of(st.tuples(inner, inner), st.frozensets(inner, max_size=3)), max_leaves=6
)
VALUES = st.recursive(
    KEYS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(KEYS, inner, max_size=4),
        st.tuples(inner),
        st.sets(KEYS, max_size=3),
    ),
    max_leaves=20,
)


@given(VALUES)
def test_what_pickle_writes_passes(value: Any) -> None:
    """Every stream of protocol 5 that needs no state passes."""
    check(pickle.dumps(value, 5))
    check(memoryview(pickle.dumps([value, value], 5)))


@pytest.mark.parametrize("size", [0, 23, 24, 25, 255, 256, 70_000])
def test_lengths(size: int) -> None:
    """Texts, bytes and numbers of every length are stepped over, also beyond a frame."""
    value = ["x" * size, b"y" * size, bytearray(size), 1 << (8 * size), "é" * size]
    check(pickle.dumps([value, *value, tuple(value)], 5))


@given(VALUES, st.data())
def test_every_cut_is_seen(value: Any, drawn: st.DataObject) -> None:
    """A stream that is cut short, or has more behind it, is refused."""
    stream = pickle.dumps(value, 5)
    with pytest.raises(OpcodeError):
        check(stream[: drawn.draw(st.integers(0, len(stream) - 1))])
    with pytest.raises(OpcodeError):
        check(stream + b".")


@given(st.binary(max_size=60), st.booleans())
def test_what_passes_is_read_alike(junk: bytes, framed: bool) -> None:
    """Of what passes, Python's own reader of opcodes finds those that may pass, and no other."""
    stream = b"\x80\x05" + (b"\x95" + len(junk).to_bytes(8, "little") if framed else b"") + junk
    try:
        check(stream)
    except OpcodeError:
        return
    codes = {ord(code.code) for code, _, _ in pickletools.genops(stream)}
    assert codes <= {*opcodes._FIXED, *opcodes._SIZED, 0x80, 0x95, ord(".")}


def test_the_opcodes_that_never_pass() -> None:
    """BUILD, memo by number, numbers for classes and all that is text are none of them."""
    passing = {*opcodes._FIXED, *opcodes._SIZED, 0x80, 0x95, ord(".")}
    refused = {code.name for code in pickletools.opcodes if ord(code.code) not in passing}
    assert refused == {
        *("BUILD", "INST", "OBJ", "GLOBAL", "EXT1", "EXT2", "EXT4", "PERSID", "PUT", "BINPUT", "LONG_BINPUT", "GET"),
        *("INT", "LONG", "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "FLOAT", "LIST", "DICT", "DUP"),
    }


def test_frames() -> None:
    """Arguments may not reach beyond their frame, and frames not beyond the stream or into one another."""

    def framed(size: int, opcodes: bytes) -> bytes:
        return b"\x80\x05\x95" + size.to_bytes(8, "little") + opcodes

    check(framed(2, b"N."))
    check(framed(1, b"N") + b".")
    check(framed(1, b"]") + framed(3, b"Na.")[2:])
    for bad in (
        framed(1, b"K\x01."),
        framed(3, b"N."),
        framed(1, b"N."),
        framed(2**63, b"N."),
        framed(9, b"\x95" + bytes(8)) + b"N.",
    ):
        if bad != framed(1, b"N."):
            with pytest.raises(OpcodeError):
                check(bad)


def test_one_part_is_one_view() -> None:
    """A part is made read-only directly behind its buffer, and nowhere else: no key is a view that is hashed anew."""
    check(b"\x80\x05](\x97\x98\x97\x94h\x00e.")
    for bad in (b"N\x98", b"](\x97\x94h\x00\x98e", b"\x97\x98\x98"):
        with pytest.raises(OpcodeError, match="READONLY_BUFFER"):
            check(b"\x80\x05" + bad + b".")


def test_keys_are_weighed() -> None:
    """Tuples may be shared as values without a limit; as keys they may not take too long to hash."""
    shared: Any = ()
    for _ in range(60):
        shared = (shared, shared)
    check(pickle.dumps([shared, shared], 5))
    point = (1, 2)
    check(pickle.dumps([{point: point, (point, point): 1} for _ in range(100)], 5))
    large = 7**4000
    check(pickle.dumps([{large: large}, [large] * 10_000, *[{large: None} for _ in range(20)]], 5))
    bomb = pickle.dumps(shared, 5)[:-1]
    assert bomb[2] == 0x95
    with pytest.raises(OpcodeError, match="too long to hash"):
        check(b"\x80\x05}" + bomb[11:] + b"Ns.")
