"""What clients and directories say to one another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from redpoll.errors import DecodeError
from redpoll.wiring.directory import protocol

__all__ = ["KINDS", "WORDS", "target"]


class _Kind(NamedTuple):
    """One thing that is said: how it is read, and how what was read is said."""

    read: Callable[[bytes], Any]
    say: Callable[[Any], bytes]


def _answer(read: Callable[[Any], Any]) -> Callable[[bytes], Any]:
    """Read the value of an answer, or return the answer if it is that there is none."""

    def reading(data: bytes) -> Any:
        answer = protocol.read_answer(data)
        return answer if answer.problem else read(answer.value)

    return reading


def _told(say: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    return lambda said: (
        protocol.say_problem(said.problem, said.text) if isinstance(said, protocol.Answer) else say(said)
    )


#: By the first byte of the input.
KINDS: dict[str, _Kind] = {
    "hello": _Kind(protocol.HELLO.read, protocol.HELLO.say),
    "keys": _Kind(protocol.LOOKUP.read, protocol.LOOKUP.say),
    "items": _Kind(protocol.REGISTER.read, protocol.REGISTER.say),
    "count": _Kind(protocol.RENEW.read, protocol.RENEW.say),
    "place": _Kind(protocol.LIST.read, protocol.LIST.say),
    "news": _Kind(protocol.NEWS.read, protocol.NEWS.say),
    "welcome": _Kind(_answer(protocol.HELLO.result), _told(protocol.HELLO.reply)),
    "results": _Kind(_answer(protocol.REGISTER.result), _told(protocol.REGISTER.reply)),
    "lookups": _Kind(_answer(protocol.LOOKUP.result), _told(protocol.LOOKUP.reply)),
    "entries": _Kind(_answer(protocol.LIST.result), _told(protocol.LIST.reply)),
}

WORDS = (
    *(bytes([each]) for each in (0x00, 0x01, 0x02, 0x90, 0x91, 0x92, 0x93, 0x95, 0x98, 0xC0, 0xC2, 0xC3, 0xCB, 0xCF)),
    *(b"\xa5queue", b"\xa8exchange", b"\xa1Q", b"\xc4\x10" + bytes(16), b"\xab127.0.0.1:1", b"\xaaunix:/run/x"),
    *(b"\xcb\x7f\xf8" + bytes(6), b"\xcf" + b"\xff" * 8, b"\xd9\xff" + b"x" * 255, b"\xa7balance", b"\xa5token"),
)


def target(data: bytes) -> None:
    """Reads any word, or raises one DecodeError; what it has read it says, and reads again, the same.

    The first byte says which word.
    """
    if not data:
        return
    kind = list(KINDS.values())[data[0] % len(KINDS)]
    try:
        said = kind.read(data[1:])
    except DecodeError:
        return
    if isinstance(said, protocol.Hello) and said.version != protocol.VERSION:
        # No more of it is read.
        return
    assert kind.read(kind.say(said)) == said
