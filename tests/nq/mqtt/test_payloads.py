"""What payloads hold comes out of them again, and what is none of ours is told apart."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from redpoll.nq.mqtt.payloads import HEADER, KEY, SECTIONS, Kind, Payload, Section, cut_out, pack, read, share

KEYS = st.binary(min_size=KEY, max_size=KEY)
U64 = st.integers(0, 2**64 - 1)


@given(st.sampled_from(Kind), KEYS, U64, U64, st.binary())
def test_a_payload_is_read_as_it_was_made(kind: Kind, link: bytes, number: int, allowed: int, data: bytes) -> None:
    """Each field of the header, and what stands behind it."""
    assert read(pack(kind, link, number, allowed) + data) == Payload(kind, link, number, allowed, memoryview(data))


@given(st.binary(max_size=2 * HEADER.size))
def test_what_does_not_begin_as_ours_is_none(data: bytes) -> None:
    """Bytes of anybody are read as None, or begin with magic, version and a kind that is known."""
    found = read(data)
    assert (found is None) == (len(data) < HEADER.size or data[:3] != b"rp\x01" or not 1 <= data[3] <= max(Kind))


@given(st.lists(st.tuples(U64, U64, st.binary(max_size=30), st.integers(0, 20)), min_size=1, max_size=9), st.binary())
def test_each_link_finds_its_own_and_what_is_shared(rows: list[tuple[int, int, bytes, int]], filler: bytes) -> None:
    """A shared payload gives each of its links what it was made for, and others nothing."""
    body = bytes(range(20))
    sections = [Section(bytes([index] * KEY), *row) for index, row in enumerate(rows)]
    payload = read(b"".join(share(sections, body)))
    assert payload is not None
    for each in sections:
        found = cut_out(payload, each.link)
        assert found is not None
        number, allowed, own, shared = found
        assert (number, allowed, bytes(own)) == (each.number, each.allowed, each.own)
        assert shared == (body[-each.shared :] if each.shared else b"")
    assert cut_out(payload, b"\xff" * KEY) is None


@given(U64, U64, st.binary(max_size=300), KEYS)
def test_a_forged_shared_payload_gives_what_is_in_it_or_nothing(
    number: int, allowed: int, data: bytes, link: bytes
) -> None:
    """Whatever its counts say, no more comes out than it holds."""
    payload = read(pack(Kind.SHARED, bytes(KEY), number % (SECTIONS + 2), allowed % 400) + data)
    assert payload is not None
    for key in (link, data[:KEY]):
        found = cut_out(payload, key)
        assert found is None or len(found[2]) + len(found[3]) <= len(data)


@given(st.data(), st.integers(1, 5))
def test_a_mutated_shared_payload_is_harmless(data: st.DataObject, count: int) -> None:
    """One changed byte changes what is found, and raises nothing."""
    sections = [Section(bytes([index] * KEY), index, index, b"own" * index, 4) for index in range(count)]
    raw = bytearray(b"".join(share(sections, b"body")))
    raw[data.draw(st.integers(4, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    payload = read(bytes(raw))
    assert payload is not None
    for each in sections:
        found = cut_out(payload, each.link)
        assert found is None or len(found[2]) + len(found[3]) <= len(raw)
