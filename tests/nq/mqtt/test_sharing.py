"""What several links have to say is put into as few payloads as it is different."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from redpoll.nq.mqtt.payloads import HEADER, KEY, SECTION, SECTIONS, Kind, cut_out, read
from redpoll.nq.mqtt.sharing import Output, Publish, arrange

LIMIT = 100_000


def output(link: int, *parts: bytes) -> Output:
    """What one link has to say."""
    return Output(link.to_bytes(KEY, "big"), f"to/{link}", link, 2 * link, [memoryview(part) for part in parts])


def heard(published: Iterable[Publish], each: Output) -> list[bytes]:
    """What the other end of a link makes of what was published, in order."""
    found = []
    for topic, parts in published:
        payload = read(b"".join(parts))
        assert payload is not None
        if payload.kind is Kind.SHARED:
            cut = cut_out(payload, each.link)
            if cut is not None:
                assert cut[:2] == (each.number, each.allowed)
                found.append(bytes(cut[2]) + bytes(cut[3]))
        elif payload.link == each.link:
            assert (topic, payload.kind) == (each.topic, Kind.BYTES)
            assert (payload.number, payload.allowed) == (each.number, each.allowed)
            found.append(bytes(payload.data))
    return found


BODIES = st.sampled_from([b"", b"short", b"the same body", b"x" * 5000, b"y" * 300 + b"the same body"])


@given(st.lists(st.tuples(st.lists(st.binary(min_size=1, max_size=20), max_size=3), BODIES), min_size=1, max_size=8))
def test_each_link_is_told_what_it_has_to_say(rows: list[tuple[list[bytes], bytes]]) -> None:
    """However it is arranged, the other end of each link gets its bytes, once, and the counters that belong to them."""
    outputs = [output(index, *small, body or b".") for index, (small, body) in enumerate(rows)]
    published = list(arrange(outputs, "all", 4000))
    for each in outputs:
        assert heard(published, each) == [b"".join(each.parts)]


def test_one_body_for_several_goes_once() -> None:
    """One payload for everybody, which holds the body once and what is each one's own beside it."""
    body = bytes(range(256)) * 64
    outputs = [output(index, b"frame %d" % index, body) for index in range(20)]
    ((topic, parts),) = arrange(outputs, "all", LIMIT)
    assert topic == "all"
    own = sum(len(each.parts[0]) for each in outputs)
    assert sum(map(len, parts)) == HEADER.size + 20 * SECTION.size + own + len(body)


def test_bytes_that_end_alike_share_their_end() -> None:
    """Small messages that were joined with their frames share the body though the frames differ."""
    outputs = [output(index, b"%16d" % index + b"thirteen byte") for index in range(3)]
    ((topic, parts),) = arrange(outputs, "all", LIMIT)
    assert topic == "all"
    assert b"".join(parts).count(b"thirteen byte") == 1


def test_what_is_different_goes_alone() -> None:
    """To the topic of its link, so that no other one reads it."""
    outputs = [output(1, b"something private"), output(2, b"something for another")]
    assert [topic for topic, _ in arrange(outputs, "all", LIMIT)] == ["to/1", "to/2"]


def test_one_link_goes_alone() -> None:
    """Nothing is shared with nobody."""
    assert [topic for topic, _ in arrange([output(1, b"the same body")], "all", LIMIT)] == ["to/1"]


def test_without_a_topic_for_everybody_each_goes_alone() -> None:
    """A client has none."""
    outputs = [output(index, b"the same body") for index in range(2)]
    assert [topic for topic, _ in arrange(outputs, None, LIMIT)] == ["to/0", "to/1"]


def test_a_payload_keeps_to_its_limit() -> None:
    """What one cannot hold goes in several, each at most as large as it may be, to at most so many links."""
    outputs = [output(index, b"%16d" % index, b"b" * 500) for index in range(SECTIONS + 50)]
    few = list(arrange(outputs, "all", 2000))
    assert max(sum(map(len, parts)) for _, parts in few) <= 2000
    assert len(list(arrange(outputs, "all", LIMIT))) == 2
    for each in outputs:
        assert heard(few, each) == [b"".join(each.parts)]
