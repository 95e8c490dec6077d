"""The inputs that fuzzing begins with, each named for what it is: `python -m tests.fuzz.seeds` writes them."""

from __future__ import annotations

import base64
import struct
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from ipaddress import ip_address
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

from redpoll import Address
from redpoll.serializers import pickle
from redpoll.wiring.directory import protocol
from redpoll.wiring.directory.entries import Entry
from redpoll.wiring.directory.table import LookupResult, Outcome, RegistrationResult
from tests.fuzz.catalogue import CORPUS
from tests.fuzz.targets import certificates, directory, link, pickle_data
from tests.fuzz.targets.parser import ANNOUNCED, ASKING, BARE, FLAT, LEAVING, PLAIN, TAKES_ALL, ZEROS_BEHIND
from tests.wire.support import (
    ACK,
    ANNOUNCE,
    ANSWER,
    CANCEL,
    CREDIT,
    FRAGMENT,
    GOODBYE,
    NOOP,
    PING,
    PONG,
    REQ_ACK,
    RETRY,
    SESSION,
    WANTED,
    announcement,
    deadline,
    frame,
    handshake,
    message,
    metadata,
)

__all__ = ["GIVEN", "REGRESSION", "seeds"]

#: What the names of inputs begin with that are made by nobody here: found by fuzzing, and certificates, which are random.
REGRESSION, GIVEN = "regression-", "given-"

#: How a stream is cut: into bytes, or at random.
_BYTES, _PIECES = b"\0", b"\1"


def seeds() -> dict[str, dict[str, bytes]]:
    """The inputs of each target, by name."""
    return {
        "parser": _streams(),
        "link": _scripts(),
        "metadata": _blocks(),
        "announcement": _announcements(),
        "address": _texts(),
        "bytes_data": {"bytes": b"\x00sixteen bytes..", "steps": b"\x29" + bytes(range(40)), "empty": b"\x00"},
        "json_data": _json(),
        "msgpack_data": _msgpack(),
        "pickle_data": _pickles(),
        "stream_data": _pieces(),
        "certificates": _files(),
        "directory": _words(),
    }


def _streams() -> dict[str, bytes]:
    opening = handshake() + announcement()
    hello = frame(REQ_ACK, 1, b"hello")
    found: dict[str, tuple[int, bytes]] = {
        "handshake": (BARE, handshake()),
        "handshake-libchirp": (BARE, handshake() + frame(NOOP, 1, identity=bytes(16)) + hello),
        "handshake-redpoll": (BARE, opening + hello),
        "handshake-tls-hello": (BARE, bytes.fromhex("1603010200010001fc0303") + bytes(range(32))),
        "handshake-tls-alert": (BARE, bytes.fromhex("15030300020228")),
        "announcement": (PLAIN, announcement() + hello),
        "announcement-again": (ANNOUNCED, announcement(window=2, units=1) + announcement(version=9)),
        "announcement-other-run": (ANNOUNCED, hello + announcement(epoch=8) + hello),
        "probe": (PLAIN, frame(NOOP, 7, identity=bytes(16))),
        "message-plain": (PLAIN, frame(REQ_ACK, 9, b"hello", header=b"header")),
        "message-plain-with-bits-of-ours": (PLAIN, frame(REQ_ACK | 0xF8, 9, b"hello")),
        "answer-plain": (PLAIN, frame(ACK, 5, identity=b"\1" * 16) + frame(REQ_ACK, 6, b"pong", identity=b"\1" * 16)),
        "message-empty": (ANNOUNCED, frame(0, 1)),
        "message-flat": (ANNOUNCED | FLAT, hello),
        "message-too-large": (ANNOUNCED, frame(REQ_ACK, 1, size=1 << 30)),
        "messages-of-one-shape": (ANNOUNCED, b"".join(frame(0, serial, b"body") for serial in range(1, 13))),
        "messages-over-the-last-serial": (
            ANNOUNCED,
            b"".join(frame(0, serial) for serial in (0xFFFFFFFE, 0xFFFFFFFF, 0, 1)),
        ),
        "messages-past-the-window": (ANNOUNCED, b"".join(frame(REQ_ACK, serial) for serial in range(12))),
        "message-large-begun": (ANNOUNCED, frame(REQ_ACK, 1, bytes(100), size=0x10001)),
        "message-large": (ANNOUNCED | ZEROS_BEHIND, frame(REQ_ACK, 1, size=0x10001)),
        "message-large-flat": (ANNOUNCED | FLAT | ZEROS_BEHIND, frame(REQ_ACK, 1, size=0x10001, header=b"header")),
        "message-large-plain": (PLAIN | ZEROS_BEHIND, frame(REQ_ACK, 1, size=0x10001)),
        "zeros": (ANNOUNCED | ZEROS_BEHIND, b""),
        "request-with-deadline": (ANNOUNCED, message(REQ_ACK | WANTED, 1, b"ping", block=deadline(500))),
        "request-with-metadata": (
            ANNOUNCED,
            message(
                REQ_ACK | WANTED, 1, b"ping", header=b"h", block=metadata((1, bytes(4)), (2, b"00-trace"), (99, b""))
            ),
        ),
        "metadata-too-long": (ANNOUNCED, frame(REQ_ACK | 0x40, 1, b"\xff\xff\1\0\4")),
        "message-again": (ANNOUNCED, hello + frame(REQ_ACK | RETRY, 1, b"hello") + frame(REQ_ACK | RETRY, 2, b"new")),
        "message-in-fragments": (ANNOUNCED, message(REQ_ACK, 1, b"a body in three", pieces=[2, 6])),
        "fragments-interleaved": (
            ANNOUNCED,
            frame(REQ_ACK | 0x80, 1, struct.pack("!Q", 4) + b"ab")
            + frame(0x80, 2, struct.pack("!Q", 2) + b"x", header=b"head")
            + frame(FRAGMENT, 1, b"c")
            + frame(FRAGMENT, 2, b"y")
            + hello
            + frame(FRAGMENT, 1, b"d"),
        ),
        "fragments-and-one-frame-of-one-name": (
            ANNOUNCED | ZEROS_BEHIND,
            frame(ANSWER | 0x80, 9, struct.pack("!Q", 2) + b"x") + frame(ANSWER, 9, size=0x10001),
        ),
        "fragment-of-nothing": (ANNOUNCED, frame(FRAGMENT, 1, b"x")),
        "fragment-too-long": (ANNOUNCED, frame(0x81, 1, struct.pack("!Q", 2) + b"a") + frame(FRAGMENT, 1, b"bc")),
        "fragments-withdrawn": (ANNOUNCED, frame(0x81, 1, struct.pack("!Q", 4) + b"ab") + frame(CANCEL, 1) + hello),
        "acknowledgement": (ASKING, frame(ACK, 1, identity=b"\1" * 16) + frame(ACK, 2, identity=b"\2" * 16)),
        "acknowledgement-of-nothing": (ASKING, frame(ACK, 9) + frame(ACK, 1)),
        "refusal": (ASKING, frame(ACK | RETRY, 3, b"\1its handler raised", identity=b"\3" * 16)),
        "refusal-not-begun": (ASKING, frame(ACK | RETRY, 2, b"\7", identity=b"\2" * 16)),
        "answer": (ASKING, frame(ACK | ANSWER, 2, b"pong", identity=b"\2" * 16)),
        "answer-behind-its-acknowledgement": (ASKING, frame(ANSWER, 4, b"pong", header=b"h", identity=b"\4" * 16)),
        "answer-in-fragments": (
            ASKING,
            frame(ACK | ANSWER | 0x80, 2, struct.pack("!Q", 4) + b"po", identity=b"\2" * 16)
            + frame(FRAGMENT, 2, b"ng", identity=b"\2" * 16),
        ),
        "answer-large": (ASKING | ZEROS_BEHIND, frame(ACK | ANSWER, 5, size=0x10001, identity=b"\5" * 16)),
        "answer-to-nothing": (ASKING, frame(ANSWER, 77, b"pong")),
        "ping": (ANNOUNCED, frame(PING, 1)),
        "pong": (ANNOUNCED, frame(PONG, 1)),
        "goodbye-up-to": (ASKING, frame(GOODBYE, 2, b"\0") + hello),
        "goodbye-none": (ASKING, frame(GOODBYE, 0, b"\1")),
        "goodbye-all": (ASKING, frame(GOODBYE, 0, b"\2") + frame(ACK, 1, identity=b"\1" * 16)),
        "goodbye-twice": (ANNOUNCED, frame(GOODBYE, 0, b"\2") * 2),
        "goodbye-crossed": (ANNOUNCED | LEAVING, hello + frame(GOODBYE, 0, b"\0")),
        "goodbye-crossed-and-taken": (ANNOUNCED | LEAVING | TAKES_ALL, hello + frame(0, 2, b"more")),
        "credit": (ASKING, frame(CREDIT, 0, struct.pack("!IQ4x", 2, 8))),
        "credit-too-much": (ANNOUNCED, frame(CREDIT, 0, struct.pack("!IQ4x", 1, 0))),
        "cancel": (ANNOUNCED, hello + frame(CANCEL, 1)),
        "cancel-hard": (ANNOUNCED, hello + frame(CANCEL, 1, b"\1")),
        "cancel-before-the-peer-is-known": (BARE, opening + hello + frame(CANCEL, 1)),
        "session": (ANNOUNCED, frame(SESSION, 0, b"a secret")),
        "session-shown": (ANNOUNCED, frame(SESSION, 0, b"\4\1\0\0\0\5" + bytes(16)) + hello),
        "session-shown-twice": (ANNOUNCED, frame(SESSION, 0, b"\4\1\0\0\0\5") * 2 + frame(SESSION, 0, b"\5")),
        "session-cut-off": (ANNOUNCED, frame(SESSION, 0, b"\4\1\0\0\0\5" + bytes(15))),
        "unknown-type": (ANNOUNCED, frame(0x44, 0)),
        "announcement-of-libchirp": (ANNOUNCED, frame(ANNOUNCE, 1)),
        "acknowledgement-that-asks-for-one": (ANNOUNCED, frame(ACK | REQ_ACK, 1)),
    }
    return {
        name: bytes([mode]) + (_BYTES if number % 2 else _PIECES) + stream
        for number, (name, (mode, stream)) in enumerate(found.items())
    }


def _script(*steps: tuple[str, *tuple[int, ...]]) -> bytes:
    """A script for the target `link`: the names of operations, and what they need."""
    numbers = link.operations()
    return b"".join(bytes([numbers[name], *needs]) for name, *needs in steps)


def _scripts() -> dict[str, bytes]:
    send, request, large = ("send", 1, 3), ("send", 2, 3), ("send", 1, 8)
    plain_link, redpoll_link = ("new_link", 0), ("new_link", 1)
    return {
        "send-and-acknowledge": _script(send, ("acknowledge", 0, 0)),
        "send-unacknowledged-and-credit": _script(("send", 0, 3), ("send", 0, 3), ("credit", 2, 3, 0)),
        "request-and-answer": _script(request, ("answer", ACK, 0, 3, 0)),
        "request-acknowledged-then-answered": _script(request, ("acknowledge", 0, 0), ("answer", 0, 1, 3, 0)),
        "request-answered-in-fragments": _script(request, ("answer", 0x82, 0, 5, 20, 0), ("fragment", 0, 3, 0)),
        "request-refused": _script(request, ("refuse", 0, 1, 0)),
        "request-past-its-time": _script(("send", 6, 3), ("wait", 2), ("wait", 2), ("acknowledge", 0, 0)),
        "send-past-the-window": _script(*[send] * 8, ("take",), ("acknowledge", 0, 0), ("take",)),
        "send-large": _script(large, ("take",), ("take",), ("acknowledge", 0, 0)),
        "send-cancelled": _script(send, large, ("cancel", 0, 0), ("cancel", 0, 1)),
        "send-again-after-a-loss": _script(("send", 0x11, 3), ("vanish", 0), redpoll_link, ("acknowledge", 0, 0)),
        "message-released": _script(("message", REQ_ACK, 1, 3, 0), ("finish", 0, 0)),
        "message-refused": _script(("message", REQ_ACK, 1, 3, 0), ("finish", 0, 1)),
        "message-answered": _script(("message", REQ_ACK | WANTED, 1, 3, 0), ("finish", 0, 2)),
        "message-cancelled": _script(
            *[("message", REQ_ACK, serial, 2, 0) for serial in (1, 2, 3)], ("control", 5, 2, 0, 0, 0)
        ),
        "message-carried-over-a-loss": _script(
            ("message", REQ_ACK, 1, 3, 0),
            ("vanish", 0),
            redpoll_link,
            ("message", REQ_ACK | RETRY, 1, 3, 0),
            ("release_all",),
        ),
        "messages-past-the-window": _script(*[("message", 0, serial, 5, 0) for serial in range(9)], ("release_all",)),
        "message-in-fragments": _script(("message", 0x81, 1, 5, 20, 0), ("fragment", 1, 4, 0), ("fragment", 1, 3, 0)),
        "goodbye-ours": _script(send, ("leave", 0, 1), ("control", 3, 1, 2, 1, 0), ("acknowledge", 0, 0)),
        "goodbye-theirs": _script(send, send, ("control", 3, 1, 1, 1, 0), redpoll_link),
        "links-two": _script(send, redpoll_link, send, ("message", REQ_ACK, 1, 3, 1), ("vanish", 0)),
        "libchirp-request": _script(
            ("vanish", 0), plain_link, request, ("acknowledge", 0, 0), ("answer_plainly", 4, 1, 9, 0), send
        ),
        "libchirp-cancelled": _script(
            ("vanish", 0), plain_link, request, ("cancel", 0, 0), send, ("wait", 5), ("wait", 5)
        ),
        "libchirp-that-announces-itself-late": _script(
            ("vanish", 0), plain_link, request, ("announce", 4, 1, 100, 0, 0)
        ),
        "window-told-anew": _script(send, ("announce", 1, 1, 100, 0, 0), send, send, ("announce", 6, 2, 100, 1, 0)),
        "silence": _script(("wait", 5), ("wait", 5), ("wait", 5), ("wait", 6)),
        "queue-without-a-link": _script(("vanish", 0), *[send] * 8, ("fail_queue", 0), redpoll_link),
        "queue-handed-over": _script(("vanish", 0), send, send, ("take_queue",), redpoll_link, ("take_queue",)),
        "messages-served": _script(*[("message", REQ_ACK, serial, 2, 0) for serial in range(4)], ("serve_all",)),
        "inbox-refused": _script(*[("message", REQ_ACK, serial, 2, 0) for serial in range(4)], ("refuse_waiting",)),
        "session-resumed": _resumed(
            send, large, request, ("vanish", 0), redpoll_link, ("take",), ("acknowledge", 0, 0)
        ),
        "session-of-another-run": _resumed(
            send, ("send", 0x21, 3), ("vanish", 0), send, plain_link, ("announce", 4, 1, 100, 1, 0), ("show", 9, 0)
        ),
        "session-shown": _script(("show", 5, 0), ("show", 5, 0), ("show", 0x45, 0), redpoll_link, ("show", 4, 1)),
        "session-over": _resumed(send, send, ("vanish", 0), ("wait", 6), send, ("fail_queue", 0)),
    }


def _resumed(*steps: tuple[Any, ...]) -> bytes:
    """A script of a node with a session: a bit of its first byte says so."""
    script = _script(*steps)
    return bytes([script[0] | 0x40]) + script[1:]


def _blocks() -> dict[str, bytes]:
    found = {
        "empty": metadata(),
        "deadline": deadline(1000),
        "deadline-of-eight-bytes": metadata((1, b"\xff" * 8)),
        "deadline-without-a-value": metadata((1, b"")),
        "deadline-twice": metadata((1, bytes(4)), (1, b"\0\0\3\xe8")),
        "every-field": metadata(
            (1, bytes(4)), (2, b"00-trace"), (3, b"text/plain"), (4, bytes(8)), (5, b"bus"), (99, b"?")
        ),
        "field-too-long": metadata((1, bytes(4)))[:-1],
        "field-cut-off": metadata((1, bytes(4))) + b"\1\0",
    }
    return {name: block[2:] for name, block in found.items()}


def _announcements() -> dict[str, bytes]:
    found = {
        "announcement": announcement(),
        "of-a-later-version": announcement(version=200),
        "of-nothing": announcement(slots=0, window=0, units=0, kib=0),
        "of-all-there-is": announcement(
            slots=0xFFFF, window=0xFFFFFFFF, units=0xFFFF, kib=0xFFFFFFFF, epoch=0xFFFFFFFF
        ),
        "probe": frame(NOOP, 3, identity=bytes(16)),
        "of-version-0": announcement(version=0),
    }
    tls = {
        "tls-hello": bytes.fromhex("1603010200010001fc0303") + bytes(9),
        "tls-alert": bytes.fromhex("15030300020228"),
    }
    return {name: found[name][:20] for name in found} | tls


def _texts() -> dict[str, bytes]:
    return {
        "ipv4": b"127.0.0.1:2998",
        "ipv6": b"[::1]:2998",
        "ipv6-with-a-scope": b"[fe80::1%eth0]:1",
        "ipv4-in-ipv6": b"[::ffff:10.0.0.1]:65535",
        "name": b"Node.Example.org:80",
        "name-not-ascii": "b\u00fccher.example:80".encode(),
        "name-with-a-dot-at-its-end": b"node.example.:80",
        "unix": b"unix:/run/redpoll.socket",
        "unix-not-utf-8": b"unix:/run/\xff\xfe",
        "inproc": b"inproc:name",
        "url": b"tcp://127.0.0.1:2998",
        "port-alone": b"2998",
        "nothing": b"",
    }


def _json() -> dict[str, bytes]:
    return {
        "values": b'{"a":[1,-2.5e3,null,true,"x"],"":{}}',
        "escapes": b'"\\u00e4\\n\\ud83d\\ude00\\""',
        "half-a-pair": b'"\\ud800"',
        "deep": b"[" * 1500 + b"]" * 1500,
        "number-of-many-digits": b"9" * 4000,
        "no-number": b"[NaN, Infinity, -Infinity]",
        "keys-twice": b'{"a": 1, "a": 2}',
        "mark-in-front": b"\xef\xbb\xbf[]",
        "not-utf-8": b'"\xff"',
        "cut-off": b'{"a": [1,',
    }


def _msgpack() -> dict[str, bytes]:
    return {
        "values": bytes.fromhex("82a1619301cb4004000000000000c0a162c403010203"),
        "integers": bytes.fromhex("98ccffcdffffceffffffffcfffffffffffffffffd080d18000d280000000d38000000000000000"),
        "time": bytes.fromhex("93d6ff00000001d7ff0000000400000001c70cff0000000100000000ffffffff"),
        "time-too-far": b"\xc7\x0c\xff" + b"\x7f" * 12,
        "extension": bytes.fromhex("c7020501020000")[:5],
        "deep": b"\x91" * 1200 + b"\xc0",
        "key-that-is-a-number": b"\x81\x01\x02",
        "key-that-is-a-list": b"\x81\x91\x01\x02",
        "length-without-bytes": b"\xdd\xff\xff\xff\xff",
        "text-not-utf-8": b"\xa2\xed\xa0",
        "more-behind": b"\xc0\xc0",
        "empty": b"",
    }


def _pickles() -> dict[str, bytes]:
    values: dict[str, Any] = {
        "plain": {"a": [1, -2.5, None, True], "b": (b"bytes", "text", 1 << 70), "c": {1, 2}, "d": frozenset((3,))},
        "times": [date(2026, 1, 2), datetime(2026, 1, 2, 3, 4, 5, 6, UTC), timedelta(1, 2, 3), time(4, 5)],
        "numbers": [Decimal("1.50"), Fraction(2, 3), 1 + 2j, array("d", (1.0, 2.0))],
        "containers": [
            deque((1, 2), 5),
            OrderedDict(first=1),
            Counter({"left": 2, "right": 1}),
            defaultdict(list, other=[1]),
        ],
        "part": [memoryview(bytes(range(256)) * 9), bytearray(b"can be written to")],
        "paths": [PurePosixPath("/a/b"), UUID(int=7), ip_address("::1")],
    }
    circle: list[Any] = []
    circle.append(circle)
    found = {name: bytes([pickle_data.FRAMED]) + bytes(pickle.encode(value)) for name, value in values.items()}
    found["circle"] = bytes([pickle_data.FRAMED]) + bytes(pickle.encode(circle))
    streams = {
        "call-of-eval": b"\x80\x05\x8c\x08builtins\x94\x8c\x04eval\x94\x93\x94\x8c\x011\x85R.",
        "call-by-text": b"\x80\x05cos\nsystem\n(X\x04\x00\x00\x00truetR.",
        "state": b"\x80\x05\x8c\x08datetime\x8c\x04date\x93)\x81}\x8c\x01aK\x01sb.",
        "memo-far-away": b"\x80\x05Nr\xff\xff\xff\x7f.",
        "frame-too-long": b"\x80\x05\x95\xff\xff\xff\xff\xff\xff\xff\x7fN.",
        "deep": b"\x80\x05" + b"]" * 600 + b"a" * 599 + b".",
        "key-of-many": b"\x80\x05K\x01" + b"\x94h\x00\x86" * 30 + b"\x90.",
        "empty": b"",
    }
    return found | {name: bytes([pickle_data.STREAM]) + stream for name, stream in streams.items()}


def _pieces() -> dict[str, bytes]:
    """Of pickles and lines; the first byte is the size of the pieces less one."""
    pickles = _pickles()
    streams = {
        "lines": b"a line\n\nanother, longer line\nno end",
        "named": b"\x80\x05\x8c\x07decimal\x8c\x07Decimal\x93\x8c\x011\x85R.",
        "named-below": b"\x80\x05\x8c\x04uuid\x8c\x09os.system\x93\x8c\x04true\x85R.",
    }
    found = {name: bytes([pickle_data.STREAM]) + stream for name, stream in streams.items()}
    found |= {name: pickles[name] for name in ("plain", "part", "paths")}
    return {name: bytes([size]) + data for size, (name, data) in enumerate(found.items())}


def _files() -> dict[str, bytes]:
    text = (CORPUS / "certificates" / certificates.GIVEN).read_bytes()[1:]
    own, authority, key = (b"-----BEGIN " + block for block in text.split(b"-----BEGIN ")[1:])
    as_text = bytes([certificates.AS_TEXT])
    return {
        "certificate": bytes([certificates.AS_CERTIFICATE]) + _der(own),
        "authority": bytes([certificates.AS_CERTIFICATE]) + _der(authority),
        "key": bytes([certificates.AS_KEY]) + _der(key),
        "key-first": as_text + key + authority + own,
        "key-of-ed25519": bytes([certificates.AS_KEY]) + bytes.fromhex("302e020100300506032b657004220420") + bytes(32),
        "no-key": as_text + own + authority,
        "no-certificate": as_text + key,
        "cut-off": as_text + text[: len(text) // 3],
        "empty": as_text,
        "not-pem": as_text + _der(own),
    }


def _words() -> dict[str, bytes]:
    """What clients and directories say, and what comes near it."""
    place = Address.parse("127.0.0.1:4000")
    entry = Entry("exchange", "PRICES", place, "balance", bytes(range(16)), 7, suspect=True)
    item = Entry(*entry.key, place, entry.style, entry.identity)
    seen = LookupResult(5, entry, True)
    found: dict[str, tuple[str, bytes]] = {
        "hello": ("hello", protocol.HELLO.say(protocol.Hello(1, bytes(16), 2**64 - 1, b"token"))),
        "hello-of-another-version": ("hello", b"\x91\x09"),
        "hello-without-a-token": ("hello", b"\x93\x01\xc4\x10" + bytes(16) + b"\x01"),
        "names": ("keys", protocol.LOOKUP.say([("queue", "Q"), entry.key])),
        "name-too-long": ("keys", protocol.LOOKUP.say([("queue", "x" * 256)])),
        "names-too-many": ("keys", protocol.LOOKUP.say([("queue", "Q")] * 257)),
        "registration": ("items", protocol.REGISTER.say([item, replace(item, style=None, identity=None)])),
        "registration-nowhere": ("items", b"\x91\x95\xa5queue\xa1Q\xa4nope\xc0\xc0"),
        "count": ("count", protocol.RENEW.say(10_000)),
        "count-unknown": ("count", protocol.RENEW.say(None)),
        "place": ("place", protocol.LIST.say(entry.key)),
        "place-first": ("place", protocol.LIST.say(None)),
        "news": (
            "news",
            protocol.NEWS.say(protocol.News(True, [(entry.key, seen), (("queue", "Q"), LookupResult(6, None, False))])),
        ),
        "welcome": ("welcome", protocol.HELLO.reply(protocol.Welcome(1, 15.0, 0.5, True, "127.0.0.1"))),
        "welcome-without-an-end": ("welcome", protocol.say([1, float("inf"), 0, True, ""])),
        "refused": ("welcome", protocol.say_problem("token", "the directory wants a token")),
        "results": ("results", protocol.REGISTER.reply([RegistrationResult(each, 0.5, 10) for each in Outcome])),
        "lookups": ("lookups", protocol.LOOKUP.reply([seen, None])),
        "entries": ("entries", protocol.LIST.reply([entry, Entry("queue", "Q", place, static=True)])),
    }
    numbers = {kind: number for number, kind in enumerate(directory.KINDS)}
    return {name: bytes([numbers[kind]]) + data for name, (kind, data) in found.items()}


def _der(block: bytes) -> bytes:
    return base64.b64decode(b"".join(block.splitlines()[1:-1]))


def write(found: Mapping[str, Mapping[str, bytes]]) -> None:
    """Make the corpus what it is to be; what was found by fuzzing and what is given stay."""
    for target, inputs in found.items():
        folder = CORPUS / target
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            if not path.name.startswith((REGRESSION, GIVEN)):
                path.unlink()
        for name, data in inputs.items():
            (folder / name).write_bytes(data)


if __name__ == "__main__":
    write(seeds())
