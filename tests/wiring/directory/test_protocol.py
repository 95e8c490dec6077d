"""What a directory and its clients say, read back; and what is none of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll import Address, DecodeError
from redpoll.serializers import msgpack
from redpoll.wiring.directory import protocol
from redpoll.wiring.directory.entries import Entry
from redpoll.wiring.directory.table import LookupResult, Outcome, RegistrationResult

CLIENT = b"c" * 16

ADDRESSES = st.sampled_from(
    [Address.parse(text) for text in ("127.0.0.1:1", "[::1]:65535", "example.org:80", "unix:/run/x", "inproc:x")]
)
KEYS = st.tuples(st.sampled_from(("exchange", "queue")), st.text("aé ☃'\"", min_size=1, max_size=60))
STYLES = st.sampled_from((None, "distribute", "balance"))
IDENTITIES = st.none() | st.binary(min_size=16, max_size=16)
ENTRIES = st.builds(
    lambda key, *rest: Entry(key[0], key[1], *rest),
    *(KEYS, ADDRESSES, STYLES, IDENTITIES, st.integers(0, 2**64 - 1), st.booleans(), st.booleans()),
)
LOOKUPS = st.builds(LookupResult, st.integers(0, 2**64 - 1), st.none() | ENTRIES, st.booleans())
RESULTS = st.builds(RegistrationResult, st.sampled_from(Outcome), st.none() | st.floats(0, 1e6), st.integers(0, 10_000))
ITEMS = st.builds(lambda key, *rest: Entry(key[0], key[1], *rest), KEYS, ADDRESSES, STYLES, IDENTITIES)


def answered(data: bytes) -> Any:
    """The value of an answer that is one."""
    answer = protocol.read_answer(data)
    assert (answer.problem, answer.text) == ("", "")
    return answer.value


@given(st.lists(KEYS), st.lists(ITEMS), st.lists(RESULTS), st.lists(st.none() | LOOKUPS), st.lists(ENTRIES))
def test_round_trips(
    keys: list[Any], items: list[Any], results: list[Any], lookups: list[Any], entries: list[Any]
) -> None:
    """What is said is read."""
    assert protocol.LOOKUP.read(protocol.LOOKUP.say(keys)) == keys
    assert protocol.REGISTER.read(protocol.REGISTER.say(items)) == items
    assert protocol.REGISTER.result(answered(protocol.REGISTER.reply(results))) == results
    assert protocol.LOOKUP.result(answered(protocol.LOOKUP.reply(lookups))) == lookups
    assert protocol.LIST.result(answered(protocol.LIST.reply(entries))) == entries


@given(st.lists(st.tuples(KEYS, LOOKUPS)), st.booleans())
def test_news_round_trip(news: list[Any], again: bool) -> None:
    """So are news, with the wish that a client says hello again."""
    assert protocol.NEWS.read(protocol.NEWS.say(protocol.News(again, news))) == (again, news)


def test_meeting_round_trips() -> None:
    """So are hello, welcome and the rest."""
    hello = protocol.Hello(protocol.VERSION, CLIENT, 7, b"token")
    assert protocol.HELLO.read(protocol.HELLO.say(hello)) == hello
    welcome = protocol.Welcome(1, 15.0, 2.5, True, "127.0.0.1")
    assert protocol.HELLO.result(answered(protocol.HELLO.reply(welcome))) == welcome
    assert protocol.RENEW.read(msgpack.encode(5)) == 5
    assert protocol.LIST.read(msgpack.encode(None)) is None
    assert protocol.LIST.read(msgpack.encode(["queue", "Q"])) == ("queue", "Q")
    assert protocol.read_answer(protocol.say_problem("token", "wrong")) == protocol.Answer(None, "token", "wrong")


def test_a_hello_of_another_version() -> None:
    """Of a version that is not spoken here no more is read than which it is."""
    assert protocol.HELLO.read(msgpack.encode([9, {"what": "ever"}])).version == 9


BATCH = [["queue", "Q"]] * (protocol.BATCH + 1)
ITEM = ["queue", "Q", "127.0.0.1:1", None, None]


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (protocol.HELLO.read, []),
        (protocol.HELLO.read, ["1"]),
        (protocol.HELLO.read, [1, CLIENT, 1]),
        (protocol.HELLO.read, [1, b"short", 1, b""]),
        (protocol.HELLO.read, [1, CLIENT, -1, b""]),
        (protocol.HELLO.read, [1, CLIENT, True, b""]),
        (protocol.HELLO.read, [1, CLIENT, 1, "text"]),
        (protocol.HELLO.read, [1, CLIENT, 1, b"x" * 1025]),
        (protocol.LOOKUP.read, {}),
        (protocol.LOOKUP.read, BATCH),
        (protocol.LOOKUP.read, [["topic", "Q"]]),
        (protocol.LOOKUP.read, [["queue", "x" * 256]]),
        (protocol.LOOKUP.read, [["queue", b"Q"]]),
        (protocol.LOOKUP.read, [["queue", "Q", 1]]),
        (protocol.LOOKUP.read, [5]),
        (protocol.REGISTER.read, [ITEM[:-1]]),
        (protocol.REGISTER.read, [[*ITEM[:2], "nowhere", None, None]]),
        (protocol.REGISTER.read, [[*ITEM[:2], 5, None, None]]),
        (protocol.REGISTER.read, [[*ITEM[:3], 5, None]]),
        (protocol.REGISTER.read, [[*ITEM[:4], b"short"]]),
        (protocol.REGISTER.read, [ITEM] * (protocol.BATCH + 1)),
        (protocol.RENEW.read, "5"),
        (protocol.LIST.read, "Q"),
        (protocol.read_answer, []),
        (protocol.read_answer, [None, "problem"]),
        (protocol.NEWS.read, [True]),
        (protocol.NEWS.read, [False, [["queue", "Q"]]]),
        (protocol.NEWS.read, [False, [["queue", "Q", [1, ["queue"], True]]]]),
    ],
)
def test_what_is_none_of_it(read: Callable[[bytes], object], value: object) -> None:
    """Anything else is a DecodeError, whatever is wrong with it."""
    with pytest.raises(DecodeError):
        read(msgpack.encode(value))


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (protocol.HELLO.result, [1]),
        (protocol.HELLO.result, [1, 15, 0, True]),
        (protocol.HELLO.result, [1, "15", 0, True, "h"]),
        (protocol.HELLO.result, [1, 2**64 - 1, 0, True, "h"]),
        (protocol.HELLO.result, [1, float("nan"), 0, True, "h"]),
        (protocol.REGISTER.result, [[9, None, 0]]),
        (protocol.REGISTER.result, [[0, None]]),
        (protocol.REGISTER.result, [[0, -1, 0]]),
        (protocol.LOOKUP.result, [[]]),
        (protocol.LIST.result, [[*ITEM, 1, False]]),
    ],
)
def test_answers_that_are_none(read: Callable[[Any], object], value: object) -> None:
    """So it is in an answer."""
    with pytest.raises(DecodeError):
        read(value)


READERS = [
    *(protocol.HELLO.read, protocol.LOOKUP.read, protocol.REGISTER.read, protocol.RENEW.read, protocol.LIST.read),
    *(protocol.read_answer, protocol.NEWS.read),
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**64 - 1) | st.floats() | st.text(max_size=5) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=30,
)


@given(st.sampled_from(READERS), VALUES.map(msgpack.encode) | st.binary(max_size=60))
def test_readers_raise_nothing_else(read: Callable[[bytes], object], data: bytes) -> None:
    """Whatever comes is read, or is a DecodeError."""
    try:
        read(data)
    except DecodeError:
        pass


@pytest.mark.parametrize("read", READERS)
def test_a_word_of_nothings(read: Callable[[bytes], object]) -> None:
    """More lists than any word has are refused as they come: 1 MiB would take 72."""
    with pytest.raises(DecodeError, match="more than 10,000"):
        read(b"\xdd" + (500_000).to_bytes(4, "big") + b"\x90" * 500_000)
