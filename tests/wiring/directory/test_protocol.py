"""What a directory and its clients say, read back; and what is none of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll import Address, DecodeError
from redpoll.serializers import msgpack
from redpoll.wiring.directory import protocol as words
from redpoll.wiring.directory.entries import Entry
from redpoll.wiring.directory.table import Outcome, Seen, Verdict

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
SIGHTS = st.builds(Seen, st.integers(0, 2**64 - 1), st.none() | ENTRIES, st.booleans())
VERDICTS = st.builds(Verdict, st.sampled_from(Outcome), st.none() | st.floats(0, 1e6), st.integers(0, 10_000))
ITEMS = st.builds(lambda key, *rest: Entry(key[0], key[1], *rest), KEYS, ADDRESSES, STYLES, IDENTITIES)


def answered(data: bytes) -> Any:
    """The value of an answer that is one."""
    answer = words.read_answer(data)
    assert (answer.problem, answer.text) == ("", "")
    return answer.value


@given(st.lists(KEYS), st.lists(ITEMS), st.lists(VERDICTS), st.lists(st.none() | SIGHTS), st.lists(ENTRIES))
def test_round_trips(
    keys: list[Any], items: list[Any], verdicts: list[Any], sights: list[Any], entries: list[Any]
) -> None:
    """What is said is read."""
    assert words.LOOKUP.read(words.LOOKUP.say(keys)) == keys
    assert words.REGISTER.read(words.REGISTER.say(items)) == items
    assert words.REGISTER.result(answered(words.REGISTER.reply(verdicts))) == verdicts
    assert words.LOOKUP.result(answered(words.LOOKUP.reply(sights))) == sights
    assert words.LIST.result(answered(words.LIST.reply(entries))) == entries


@given(st.lists(st.tuples(KEYS, SIGHTS)), st.booleans())
def test_news_round_trip(news: list[Any], again: bool) -> None:
    """So are news, with the wish that a client says hello again."""
    assert words.NEWS.read(words.NEWS.say(words.News(again, news))) == (again, news)


def test_meeting_round_trips() -> None:
    """So are hello, welcome and the rest."""
    hello = words.Hello(words.VERSION, CLIENT, 7, b"token")
    assert words.HELLO.read(words.HELLO.say(hello)) == hello
    welcome = words.Welcome(1, 15.0, 2.5, True, "127.0.0.1")
    assert words.HELLO.result(answered(words.HELLO.reply(welcome))) == welcome
    assert words.RENEW.read(msgpack.encode(5)) == 5
    assert words.LIST.read(msgpack.encode(None)) is None
    assert words.LIST.read(msgpack.encode(["queue", "Q"])) == ("queue", "Q")
    assert words.read_answer(words.say_problem("token", "wrong")) == words.Answer(None, "token", "wrong")


def test_a_hello_of_another_version() -> None:
    """Of a version that is not spoken here no more is read than which it is."""
    assert words.HELLO.read(msgpack.encode([9, {"what": "ever"}])).version == 9


BATCH = [["queue", "Q"]] * (words.BATCH + 1)
ITEM = ["queue", "Q", "127.0.0.1:1", None, None]


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (words.HELLO.read, []),
        (words.HELLO.read, ["1"]),
        (words.HELLO.read, [1, CLIENT, 1]),
        (words.HELLO.read, [1, b"short", 1, b""]),
        (words.HELLO.read, [1, CLIENT, -1, b""]),
        (words.HELLO.read, [1, CLIENT, True, b""]),
        (words.HELLO.read, [1, CLIENT, 1, "text"]),
        (words.HELLO.read, [1, CLIENT, 1, b"x" * 1025]),
        (words.LOOKUP.read, {}),
        (words.LOOKUP.read, BATCH),
        (words.LOOKUP.read, [["topic", "Q"]]),
        (words.LOOKUP.read, [["queue", "x" * 256]]),
        (words.LOOKUP.read, [["queue", b"Q"]]),
        (words.LOOKUP.read, [["queue", "Q", 1]]),
        (words.LOOKUP.read, [5]),
        (words.REGISTER.read, [ITEM[:-1]]),
        (words.REGISTER.read, [[*ITEM[:2], "nowhere", None, None]]),
        (words.REGISTER.read, [[*ITEM[:2], 5, None, None]]),
        (words.REGISTER.read, [[*ITEM[:3], 5, None]]),
        (words.REGISTER.read, [[*ITEM[:4], b"short"]]),
        (words.REGISTER.read, [ITEM] * (words.BATCH + 1)),
        (words.RENEW.read, "5"),
        (words.LIST.read, "Q"),
        (words.read_answer, []),
        (words.read_answer, [None, "problem"]),
        (words.NEWS.read, [True]),
        (words.NEWS.read, [False, [["queue", "Q"]]]),
        (words.NEWS.read, [False, [["queue", "Q", [1, ["queue"], True]]]]),
    ],
)
def test_what_is_none_of_it(read: Callable[[bytes], object], value: object) -> None:
    """Anything else is a DecodeError, whatever is wrong with it."""
    with pytest.raises(DecodeError):
        read(msgpack.encode(value))


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (words.HELLO.result, [1]),
        (words.HELLO.result, [1, 15, 0, True]),
        (words.HELLO.result, [1, "15", 0, True, "h"]),
        (words.HELLO.result, [1, 2**64 - 1, 0, True, "h"]),
        (words.HELLO.result, [1, float("nan"), 0, True, "h"]),
        (words.REGISTER.result, [[9, None, 0]]),
        (words.REGISTER.result, [[0, None]]),
        (words.REGISTER.result, [[0, -1, 0]]),
        (words.LOOKUP.result, [[]]),
        (words.LIST.result, [[*ITEM, 1, False]]),
    ],
)
def test_answers_that_are_none(read: Callable[[Any], object], value: object) -> None:
    """So it is in an answer."""
    with pytest.raises(DecodeError):
        read(value)


READERS = [
    *(words.HELLO.read, words.LOOKUP.read, words.REGISTER.read, words.RENEW.read, words.LIST.read),
    *(words.read_answer, words.NEWS.read),
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
