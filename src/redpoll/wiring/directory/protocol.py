"""The protocol between a directory and its clients: a word in the header of a node message, and a body in MessagePack.

Every word of a client is a request. A directory sends one word unasked, `NEWS`. Decoding validates everything: malformed
data raises `DecodeError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

from redpoll.address import Address
from redpoll.errors import DecodeError, UsageError
from redpoll.serializers import MsgpackSerializer
from redpoll.wiring.directory.entries import Entry, Key, key_of, style_of
from redpoll.wiring.directory.table import Outcome, Seen, Verdict
from redpoll.wiring.directory.tokens import MAX_TOKEN

__all__ = [
    "BATCH",
    "BYE",
    "HELLO",
    "LIST",
    "LOOKUP",
    "NEWS",
    "NOTHING",
    "PAGE",
    "REGISTER",
    "RENEW",
    "SETTLED",
    "UNREGISTER",
    "UNWATCH",
    "VERSION",
    "WATCH",
    "Answer",
    "Hello",
    "Item",
    "Welcome",
    "read_answer",
    "read_count",
    "read_entries",
    "read_hello",
    "read_items",
    "read_keys",
    "read_news",
    "read_place",
    "read_sights",
    "read_verdicts",
    "read_welcome",
    "say",
    "say_count",
    "say_entries",
    "say_hello",
    "say_items",
    "say_keys",
    "say_news",
    "say_place",
    "say_problem",
    "say_sights",
    "say_verdicts",
    "say_welcome",
]

T = TypeVar("T")

#: Version of the protocol.
VERSION = 1

#: Words of clients.
HELLO = b"directory hello"
REGISTER = b"directory register"
UNREGISTER = b"directory unregister"
SETTLED = b"directory settled"
LOOKUP = b"directory lookup"
WATCH = b"directory watch"
UNWATCH = b"directory unwatch"
RENEW = b"directory renew"
LIST = b"directory list"
BYE = b"directory bye"

#: Word of a directory.
NEWS = b"directory news"

#: Body of a word without data.
NOTHING = b""

#: Maximum names per message.
BATCH = 256

#: Maximum entries in one answer to `LIST`.
PAGE = 1024

# Any peer may send these: the limit is above what a valid message has.
msgpack = MsgpackSerializer(max_containers=10_000)

_ID = 16
_U64 = 2**64 - 1
_YEAR = 31_536_000.0


class Hello(NamedTuple):
    """A client's identification."""

    version: int
    client: bytes
    run: int
    token: bytes


class Welcome(NamedTuple):
    """The answer of a directory to a hello.

    Attributes:
        lease: Seconds for which a silent client keeps its names.
        settles_in: Seconds until the directory knows that a name has no owner; 0 if it knows.
        near: True if the client is on the directory's machine, by the address of its link.
        host: The client's host, as the directory sees it.
    """

    version: int
    lease: float
    settles_in: float
    near: bool
    host: str


class Item(NamedTuple):
    """A registration."""

    key: Key
    address: Address
    style: str | None
    identity: bytes | None

    def entry(self, run: int) -> Entry:
        """Return the entry that it makes."""
        return Entry(*self.key, self.address, self.style, self.identity, run)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, or the problem that prevented it.

    Attributes:
        value: The requested value.
        problem: "" or the problem, for a program: "version", "token", "hello".
        text: The same for people.
    """

    value: Any
    problem: str = ""
    text: str = ""


# Answers


def say(value: object) -> bytes:
    """Return the body of an answer."""
    return msgpack.encode([value])


def say_problem(problem: str, text: str) -> bytes:
    """Return the body of an answer that reports a problem."""
    return msgpack.encode([None, problem, text])


def read_answer(data: bytes) -> Answer:
    """Decode an answer.

    Raises:
        DecodeError: It is none.
    """
    said = _list(msgpack.decode(data))
    if len(said) == 1:
        return Answer(said[0])
    return Answer(None, _text(_at(said, 1)), _text(_at(said, 2)))


# Session


def say_hello(hello: Hello) -> bytes:
    """Return the body of a hello."""
    return msgpack.encode(list(hello))


def read_hello(data: bytes) -> Hello:
    """Decode a hello; of another version only the version is decoded.

    Raises:
        DecodeError: It is none.
    """
    said = _list(msgpack.decode(data))
    version = _number(_at(said, 0))
    if version != VERSION:
        return Hello(version, b"", 0, b"")
    token = _bytes(_at(said, 3))
    if len(token) > MAX_TOKEN:
        raise _wrong(f"a token of at most {MAX_TOKEN} bytes")
    return Hello(version, _identity(_at(said, 1)), _number(_at(said, 2)), token)


def say_welcome(welcome: Welcome) -> bytes:
    """Return the answer to a hello."""
    return say(list(welcome))


def read_welcome(value: Any) -> Welcome:
    """Decode the answer to a hello.

    Raises:
        DecodeError: It is no welcome.
    """
    said = _list(value)
    return Welcome(
        _number(_at(said, 0)), _seconds(_at(said, 1)), _seconds(_at(said, 2)), bool(_at(said, 3)), _text(_at(said, 4))
    )


# Names


def say_keys(keys: Iterable[Key]) -> bytes:
    """Return the body of a word about names."""
    return msgpack.encode([list(key) for key in keys])


def read_keys(data: bytes) -> list[Key]:
    """Decode names.

    Raises:
        DecodeError: They are none.
    """
    return [_key(each) for each in _batch(data)]


def say_items(items: Iterable[Item]) -> bytes:
    """Return the body of `REGISTER`."""
    return msgpack.encode([[*item.key, str(item.address), item.style, item.identity] for item in items])


def read_items(data: bytes) -> list[Item]:
    """Decode registrations.

    Raises:
        DecodeError: They are none.
    """
    return [_item(each) for each in _batch(data)]


def say_count(count: int | None) -> bytes:
    """Return the body of `RENEW`: the number of names that the client has, as far as it knows."""
    return msgpack.encode(count)


def read_count(data: bytes) -> int | None:
    """Decode the number of names that a client has; None if the client does not know.

    Raises:
        DecodeError: It is no number.
    """
    count = msgpack.decode(data)
    return None if count is None else _number(count)


def say_verdicts(verdicts: Iterable[Verdict]) -> bytes:
    """Return the answer to `REGISTER`."""
    return say([[verdict.outcome.value, verdict.free_in, verdict.limit] for verdict in verdicts])


def read_verdicts(value: Any) -> list[Verdict]:
    """Decode the results of registrations.

    Raises:
        DecodeError: It is nothing of the kind.
    """
    return [_verdict(_list(each)) for each in _list(value)]


def say_sights(sights: Iterable[Seen | None]) -> bytes:
    """Return the answer to `LOOKUP` and `WATCH`; None for a name that is not watched, since a limit was reached."""
    return say([None if seen is None else _seen(seen) for seen in sights])


def read_sights(value: Any) -> list[Seen | None]:
    """Decode the results of lookups, in the order in which they were requested.

    Raises:
        DecodeError: It is nothing of the kind.
    """
    return [None if each is None else _read_seen(each) for each in _list(value)]


def say_news(news: Iterable[tuple[Key, Seen]], *, again: bool) -> bytes:
    """Return the body of `NEWS`.

    Args:
        news: The names, each with its current state.
        again: Ask the client to say hello again and to register all its names.
    """
    return msgpack.encode([again, [[*key, _seen(seen)] for key, seen in news]])


def read_news(data: bytes) -> tuple[bool, list[tuple[Key, Seen]]]:
    """Decode news.

    Raises:
        DecodeError: They are none.
    """
    again, news = _exactly(_list(msgpack.decode(data)), 2)
    return bool(again), [(_key(each[:2]), _read_seen(_at(each, 2))) for each in map(_list, _list(news))]


# Lists


def say_place(place: Key | None) -> bytes:
    """Return the body of `LIST`: the last name that the client has received; None at the beginning."""
    return msgpack.encode(None if place is None else list(place))


def read_place(data: bytes) -> Key | None:
    """Decode the body of `LIST`.

    Raises:
        DecodeError: It is neither.
    """
    place = msgpack.decode(data)
    return None if place is None else _key(place)


def say_entries(entries: Iterable[Entry]) -> bytes:
    """Return the answer to `LIST`, in the order of the names."""
    return say([_packed(entry) for entry in entries])


def read_entries(value: Any) -> list[Entry]:
    """Decode a page of entries.

    Raises:
        DecodeError: It is none.
    """
    return [_entry(each) for each in _list(value)]


# Fields


def _packed(entry: Entry) -> list[Any]:
    return [
        *(entry.kind, entry.name, str(entry.address), entry.style, entry.identity),
        *(entry.run, entry.static, entry.suspect),
    ]


def _entry(value: Any) -> Entry:
    kind, name, address, style, identity, run, static, suspect = _exactly(_list(value), 8)
    item = _item([kind, name, address, style, identity])
    return Entry(*item.key, item.address, item.style, item.identity, _number(run), bool(static), bool(suspect))


def _item(value: Any) -> Item:
    kind, name, address, style, identity = _exactly(_list(value), 5)
    return Item(
        _key([kind, name]),
        _of(Address.parse, _text(address)),
        _of(style_of, style),
        None if identity is None else _identity(identity),
    )


def _seen(seen: Seen) -> list[Any]:
    return [seen.revision, None if seen.entry is None else _packed(seen.entry), seen.known]


def _read_seen(value: Any) -> Seen:
    revision, entry, known = _exactly(_list(value), 3)
    return Seen(_number(revision), None if entry is None else _entry(entry), bool(known))


def _verdict(said: Sequence[Any]) -> Verdict:
    outcome, free_in, limit = _exactly(said, 3)
    try:
        outcome = Outcome(outcome)
    except ValueError as error:
        raise _wrong("an outcome") from error
    return Verdict(outcome, None if free_in is None else _seconds(free_in), _number(limit))


def _batch(data: bytes) -> Sequence[Any]:
    said = _list(msgpack.decode(data))
    if len(said) > BATCH:
        raise _wrong(f"at most {BATCH} names")
    return said


def _key(value: Any) -> Key:
    kind, name = _exactly(_list(value), 2)
    return _of(lambda pair: key_of(*pair), (kind, name))


def _of(make: Callable[[Any], T], value: Any) -> T:
    try:
        return make(value)
    except UsageError as error:
        raise DecodeError("directory", error.text) from error


def _list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list):
        raise _wrong("a list")
    return value


def _exactly(values: Sequence[Any], count: int) -> Sequence[Any]:
    if len(values) != count:
        raise _wrong(f"{count} fields")
    return values


def _at(values: Sequence[Any], place: int) -> Any:
    if len(values) <= place:
        raise _wrong(f"a field {place}")
    return values[place]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong("text")
    return value


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise _wrong("bytes")
    return value


def _identity(value: Any) -> bytes:
    if len(_bytes(value)) != _ID:
        raise _wrong(f"{_ID} bytes")
    return cast("bytes", value)


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _U64:
        raise _wrong("a number")
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _YEAR:
        raise _wrong("a time")
    return float(value)


def _wrong(what: str) -> DecodeError:
    return DecodeError("directory", f"expected {what}")
