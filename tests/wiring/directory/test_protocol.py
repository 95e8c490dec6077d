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
from tests.wiring.directory.support import entry

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
ITEMS = st.builds(words.Item, KEYS, ADDRESSES, STYLES, IDENTITIES)


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
    assert words.read_keys(words.say_keys(keys)) == keys
    assert words.read_items(words.say_items(items)) == items
    assert words.read_verdicts(answered(words.say_verdicts(verdicts))) == verdicts
    assert words.read_sights(answered(words.say_sights(sights))) == sights
    assert words.read_entries(answered(words.say_entries(entries))) == entries


@given(st.lists(st.tuples(KEYS, SIGHTS)), st.booleans())
def test_news_round_trip(news: list[Any], again: bool) -> None:
    """So are news, with the wish that a client says hello again."""
    assert words.read_news(words.say_news(news, again=again)) == (again, news)


def test_meeting_round_trips() -> None:
    """So are hello, welcome and the rest."""
    hello = words.Hello(words.VERSION, CLIENT, 7, b"token")
    assert words.read_hello(words.say_hello(hello)) == hello
    welcome = words.Welcome(1, 15.0, 2.5, True, "127.0.0.1")
    assert words.read_welcome(answered(words.say_welcome(welcome))) == welcome
    assert words.read_count(msgpack.encode(5)) == 5
    assert words.read_place(msgpack.encode(None)) is None
    assert words.read_place(msgpack.encode(["queue", "Q"])) == ("queue", "Q")
    assert words.read_answer(words.say_problem("token", "wrong")) == words.Answer(None, "token", "wrong")


def test_an_item_is_an_entry() -> None:
    """A registration makes an entry of the run of who registers."""
    item = words.Item(entry().key, entry().address, entry().style, entry().identity)
    assert item.entry(1) == entry()


def test_a_hello_of_another_version() -> None:
    """Of a version that is not spoken here no more is read than which it is."""
    assert words.read_hello(msgpack.encode([9, {"what": "ever"}])).version == 9


BATCH = [["queue", "Q"]] * (words.BATCH + 1)
ITEM = ["queue", "Q", "127.0.0.1:1", None, None]


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (words.read_hello, []),
        (words.read_hello, ["1"]),
        (words.read_hello, [1, CLIENT, 1]),
        (words.read_hello, [1, b"short", 1, b""]),
        (words.read_hello, [1, CLIENT, -1, b""]),
        (words.read_hello, [1, CLIENT, True, b""]),
        (words.read_hello, [1, CLIENT, 1, "text"]),
        (words.read_hello, [1, CLIENT, 1, b"x" * 1025]),
        (words.read_keys, {}),
        (words.read_keys, BATCH),
        (words.read_keys, [["topic", "Q"]]),
        (words.read_keys, [["queue", "x" * 256]]),
        (words.read_keys, [["queue", b"Q"]]),
        (words.read_keys, [["queue", "Q", 1]]),
        (words.read_keys, [5]),
        (words.read_items, [ITEM[:-1]]),
        (words.read_items, [[*ITEM[:2], "nowhere", None, None]]),
        (words.read_items, [[*ITEM[:2], 5, None, None]]),
        (words.read_items, [[*ITEM[:3], 5, None]]),
        (words.read_items, [[*ITEM[:4], b"short"]]),
        (words.read_items, [ITEM] * (words.BATCH + 1)),
        (words.read_count, "5"),
        (words.read_place, "Q"),
        (words.read_answer, []),
        (words.read_answer, [None, "problem"]),
        (words.read_news, [True]),
        (words.read_news, [False, [["queue", "Q"]]]),
        (words.read_news, [False, [["queue", "Q", [1, ["queue"], True]]]]),
    ],
)
def test_what_is_none_of_it(read: Callable[[bytes], object], value: object) -> None:
    """Anything else is a DecodeError, whatever is wrong with it."""
    with pytest.raises(DecodeError):
        read(msgpack.encode(value))


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (words.read_welcome, [1]),
        (words.read_welcome, [1, 15, 0, True]),
        (words.read_welcome, [1, "15", 0, True, "h"]),
        (words.read_welcome, [1, 2**64 - 1, 0, True, "h"]),
        (words.read_welcome, [1, float("nan"), 0, True, "h"]),
        (words.read_verdicts, [[9, None, 0]]),
        (words.read_verdicts, [[0, None]]),
        (words.read_verdicts, [[0, -1, 0]]),
        (words.read_sights, [[]]),
        (words.read_entries, [[*ITEM, 1, False]]),
    ],
)
def test_answers_that_are_none(read: Callable[[Any], object], value: object) -> None:
    """So it is in an answer."""
    with pytest.raises(DecodeError):
        read(value)


READERS = [
    *(words.read_hello, words.read_keys, words.read_items, words.read_count, words.read_place),
    *(words.read_answer, words.read_news),
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
