"""The protocol between a directory and its clients: a word in the header of a node message, and a body in MessagePack.

Every word of a client is a request. A directory sends one word unasked, `NEWS`. Decoding validates everything: malformed
data raises `DecodeError`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from redpoll.address import Address
from redpoll.errors import DecodeError, UsageError
from redpoll.serializers import MsgpackSerializer
from redpoll.wiring.directory.entries import Entry, Key, key_of, style_of
from redpoll.wiring.directory.table import LookupResult, Outcome, RegistrationResult
from redpoll.wiring.directory.tokens import MAX_TOKEN

__all__ = ["Answer", "Hello", "News", "Welcome", "Word", "read_answer", "say", "say_problem"]

#: Version of the protocol.
VERSION = 1

#: Maximum names per message.
BATCH = 256

#: Maximum entries in one answer to `LIST`.
PAGE = 1024

# Any peer may send these: the limit is above what a valid message has.
_msgpack = MsgpackSerializer(max_containers=10_000)

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


class News(NamedTuple):
    """News that a directory tells a client unasked.

    Attributes:
        again: True if the client is to say hello again and to register all its names.
        seen: Changed names, each with its current state.
    """

    again: bool
    seen: list[tuple[Key, LookupResult]]


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


def say(value: object) -> bytes:
    """Return the body of an answer."""
    return _msgpack.encode([value])


def say_problem(problem: str, text: str) -> bytes:
    """Return the body of an answer that reports a problem."""
    return _msgpack.encode([None, problem, text])


def read_answer(data: bytes) -> Answer:
    """Decode an answer.

    Raises:
        DecodeError: It is none.
    """
    said = _list(_msgpack.decode(data))
    if len(said) == 1:
        return Answer(said[0])
    _, problem, text = _exactly(said, 3)
    return Answer(None, _TEXT.check(problem), _TEXT.check(text))


# Forms of values


class _Form(NamedTuple):
    """The form of a value in a message.

    Attributes:
        plain: Returns the lists, numbers and texts that stand for a value.
        check: Returns the value that they stand for; raises `DecodeError` if there is none.
    """

    plain: Callable[[Any], Any]
    check: Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


def _of(kind: Any, what: str, is_valid: Callable[[Any], bool] = lambda _: True) -> _Form:
    """Return the form of plain values of a type."""

    def check(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, kind) or not is_valid(value):
            raise _wrong(what)
        return value

    return _Form(_same, check)


def _made(make: Callable[[Any], Any], plain: Callable[[Any], Any] = _same) -> _Form:
    """Return the form of values that a function makes, or refuses with a `ValueError`."""

    def check(value: Any) -> Any:
        try:
            return make(value)
        except ValueError as error:
            raise DecodeError("directory", error.text if isinstance(error, UsageError) else str(error)) from error

    return _Form(plain, check)


def _maybe(form: _Form) -> _Form:
    """Return the form of values that may be None."""
    return _Form(
        lambda value: None if value is None else form.plain(value),
        lambda value: None if value is None else form.check(value),
    )


def _many(form: _Form, most: int = 2**32) -> _Form:
    """Return the form of lists of values."""

    def check(value: Any) -> list[Any]:
        if len(_list(value)) > most:
            raise _wrong(f"at most {most} names")
        return [form.check(each) for each in value]

    return _Form(lambda values: [form.plain(each) for each in values], check)


def _record(make: Callable[..., Any], *forms: _Form, fields: Callable[[Any], Any] = _same) -> _Form:
    """Return the form of records, which are lists in messages."""
    return _Form(
        lambda value: [form.plain(each) for form, each in zip(forms, fields(value), strict=True)],
        lambda value: make(
            *(form.check(each) for form, each in zip(forms, _exactly(_list(value), len(forms)), strict=True))
        ),
    )


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong("a list")
    return value


def _exactly(values: list[Any], count: int) -> list[Any]:
    if len(values) != count:
        raise _wrong(f"{count} fields")
    return values


def _wrong(what: str) -> DecodeError:
    return DecodeError("directory", f"expected {what}")


def _check_hello(value: Any) -> Hello:
    """Check a hello; of another version only the version is decoded."""
    version: int = _NUMBER.check(value[0] if _list(value) else None)
    hello: Hello = Hello(version, b"", 0, b"") if version != VERSION else _HELLO.check(value)
    return hello


_ANY = _Form(_same, _same)
_FLAG = _Form(_same, bool)
_TEXT = _of(str, "text")
_NUMBER = _of(int, "a number", lambda value: 0 <= value <= _U64)
_SECONDS = _of(int | float, "a time", lambda value: 0 <= value <= _YEAR)
_IDENTITY = _of(bytes, "16 bytes", lambda value: len(value) == 16)
_TOKEN = _of(bytes, f"a token of at most {MAX_TOKEN} bytes", lambda value: len(value) <= MAX_TOKEN)
_HELLO = _record(Hello, _NUMBER, _IDENTITY, _NUMBER, _TOKEN)
_WELCOME = _record(Welcome, _NUMBER, _SECONDS, _SECONDS, _FLAG, _TEXT)
_KEY = _made(lambda pair: key_of(*_exactly(_list(pair), 2)), list)
_KEYS = _many(_KEY, BATCH)
_FIELDS = (
    *(_ANY, _ANY, _made(lambda text: Address.parse(_TEXT.check(text)), str), _made(style_of), _maybe(_IDENTITY)),
    *(_NUMBER, _FLAG, _FLAG),
)
_NAMES = ("kind", "name", "address", "style", "identity", "run", "static", "suspect")


def _entry(kind: Any, name: Any, *rest: Any) -> Entry:
    return Entry(*_KEY.check([kind, name]), *rest)


_ITEMS = _many(_record(_entry, *_FIELDS[:5], fields=attrgetter(*_NAMES[:5])), BATCH)
_ENTRY = _record(_entry, *_FIELDS, fields=attrgetter(*_NAMES))
_SEEN = _record(LookupResult, _NUMBER, _maybe(_ENTRY), _FLAG)
_CHANGE = _record(
    lambda kind, name, seen: (_KEY.check([kind, name]), seen),
    *(_ANY, _ANY, _SEEN),
    fields=lambda change: (*change[0], change[1]),
)
_RESULT = _record(RegistrationResult, _made(Outcome, attrgetter("value")), _maybe(_SECONDS), _NUMBER)


# Words


class Word(NamedTuple):
    """A word, which is the header of its message.

    Attributes:
        header: The header.
        body: The form of its body; None if that is empty.
        answer: The form of the answer to it.
    """

    header: bytes
    body: _Form | None = None
    answer: _Form = _ANY

    def say(self, value: Any = None) -> bytes:
        """Return the body of the word."""
        return b"" if self.body is None else _msgpack.encode(self.body.plain(value))

    def read(self, data: bytes) -> Any:
        """Decode the body of the word.

        Raises:
            DecodeError: It is malformed.
        """
        return None if self.body is None else self.body.check(_msgpack.decode(data))

    def reply(self, value: Any) -> bytes:
        """Return the body of an answer to it."""
        return say(self.answer.plain(value))

    def result(self, value: Any) -> Any:
        """Return the value of an answer, checked.

        Raises:
            DecodeError: It is malformed.
        """
        return self.answer.check(value)


HELLO = Word(b"directory hello", _Form(list, _check_hello), _WELCOME)
"""A client's identification."""
REGISTER = Word(b"directory register", _ITEMS, _many(_RESULT))
"""Entries to register; the answer has the result of each."""
UNREGISTER = Word(b"directory unregister", _KEYS)
"""Names to remove."""
SETTLED = Word(b"directory settled")
"""The client has registered all its names."""
LOOKUP = Word(b"directory lookup", _KEYS, _many(_maybe(_SEEN)))
"""Names to look up; the answer has the state of each."""
WATCH = Word(b"directory watch", _KEYS, _many(_maybe(_SEEN)))
"""Names to watch; the answer has None for one that is not watched, since a limit was reached."""
UNWATCH = Word(b"directory unwatch", _KEYS)
"""Names to watch no more."""
RENEW = Word(b"directory renew", _maybe(_NUMBER), _FLAG)
"""The number of names that the client has, None if it does not know; the answer is whether the directory has as many."""
LIST = Word(b"directory list", _maybe(_KEY), _many(_ENTRY))
"""The last name that the client has received, None at the beginning; the answer has the next entries."""
BYE = Word(b"directory bye")
"""The client closes."""
NEWS = Word(b"directory news", _record(News, _FLAG, _many(_CHANGE)))
"""Of the directory: changed names."""
