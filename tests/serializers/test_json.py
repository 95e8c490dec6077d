"""json: strict text in UTF-8."""

from __future__ import annotations

from typing import Any

import pytest

from redpoll.errors import ConfigError, DecodeError, EncodeError
from redpoll.serializers import JsonSerializer

JSON = JsonSerializer()


def test_it_is_compact_utf8() -> None:
    """No spaces are sent, and no escapes where UTF-8 has the letter."""
    assert JSON.encode({"a": [1, "é", None, True]}) == '{"a":[1,"é",null,true]}'.encode()


def test_what_json_has_not_changes_as_documented() -> None:
    """Tuples arrive as lists, and keys as text."""
    assert JSON.decode(JSON.encode({1: (2, 3), None: True})) == {"1": [2, 3], "null": True}


def test_of_equal_keys_the_last_counts() -> None:
    """An object that repeats a key is read as its last one."""
    assert JSON.decode(b'{"a":1,"a":2}') == {"a": 2}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), b"bytes", {1, 2}, "\ud800", {(1, 2): 3}])
def test_what_json_cannot_say_is_refused(value: object) -> None:
    """NaN, the infinities, bytes, sets and lone surrogates are an EncodeError with the cause."""
    with pytest.raises(EncodeError) as caught:
        JSON.encode([value])
    assert caught.value.__cause__ is not None
    assert str(caught.value).startswith("json cannot encode: ")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[1,]",
        b"[1] x",
        b"NaN",
        b"[Infinity]",
        b"-Infinity",
        b"\xff",
        b'"\xed\xa0\x80"',
        b"\xef\xbb\xbf1",
        '"a"'.encode("utf-16"),
        b"'a'",
        b'"a\nb"',
        b"1" * 5_000,
    ],
)
def test_what_is_no_json_is_refused(data: bytes) -> None:
    """Bad syntax, NaN, other encodings and endless numbers are a DecodeError with the cause."""
    with pytest.raises(DecodeError) as caught:
        JSON.decode(data)
    assert caught.value.__cause__ is not None
    assert str(caught.value).startswith("json cannot decode: ")


def test_the_error_says_where() -> None:
    """The text has the position that the parser gives."""
    with pytest.raises(DecodeError, match=r"line 1 column 4 \(char 3\)"):
        JSON.decode(b"[1 2]")


@pytest.mark.parametrize("each", ["[]", "{}", "[1]", '{"":{}}'])
def test_containers_are_bounded(each: str) -> None:
    """A message with more lists and dicts than the limit is refused, before one is made."""
    few = JsonSerializer(max_containers=100)
    most = 99 // (each.count("[") + each.count("{"))
    assert len(few.decode(f"[{','.join([each] * most)}]".encode())) == most
    with pytest.raises(DecodeError, match=r"more than 100 lists and dicts \(JsonSerializer\(max_containers="):
        few.decode(f"[{','.join([each] * (most + 1))}]".encode())


@pytest.mark.parametrize("text", ["[{" * 500, '"[' * 500, "\\[" * 500, "\\" + '"{' * 500, "[\n" * 500])
def test_brackets_in_text_are_not_counted(text: str) -> None:
    """Text that holds JSON, quotes and backslashes arrives, however many brackets are in it."""
    assert JsonSerializer(max_containers=2).decode(JSON.encode([text, {text: text}])) == [text, {text: text}]


def test_a_million_by_default() -> None:
    """More than a million are refused."""
    with pytest.raises(DecodeError, match="more than 1,000,000"):
        JSON.decode(b"[" + b"[]," * 1_000_000 + b"1]")


@pytest.mark.parametrize("limit", [0, True, None, 1.5])
def test_a_limit_is_a_number(limit: Any) -> None:
    """An invalid number of containers is a ConfigError that names it."""
    with pytest.raises(ConfigError, match="max_containers"):
        JsonSerializer(max_containers=limit)
