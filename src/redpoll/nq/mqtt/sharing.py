"""Joins the equal data of several links into one payload."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from redpoll.nq.mqtt.payloads import HEADER, SECTION, SECTIONS, Kind, Section, pack, share

__all__ = ["Output", "Publish", "arrange"]

#: Outputs are compared in full if this many bytes at their ends are equal.
_TAIL = 8


class Output(NamedTuple):
    """The next bytes of one link.

    Attributes:
        link: Its key.
        topic: The topic for them alone.
        number: Number of earlier payloads of the link.
        allowed: The other end's limit.
        parts: The bytes; a large part is the last one.
    """

    link: bytes
    topic: str
    number: int
    allowed: int
    parts: list[memoryview]


class Publish(NamedTuple):
    """A payload to publish: a topic, and the parts of the payload."""

    topic: str
    parts: Sequence[bytes | memoryview]


def arrange(outputs: list[Output], everybody: str | None, limit: int) -> Iterable[Publish]:
    """Return outputs with equal ends as one payload for everybody, each other one as a payload of its own.

    Args:
        outputs: Data of different links.
        everybody: The topic that all the other ends read; None if there is no such topic.
        limit: Maximum size of a payload, in bytes.
    """
    if everybody is None or len(outputs) == 1:
        return [_alone(output) for output in outputs]
    groups: dict[bytes, list[Output]] = {}
    for output in outputs:
        groups.setdefault(bytes(output.parts[-1][-_TAIL:]), []).append(output)
    published: list[Publish] = []
    for tail, group in groups.items():
        if len(group) == 1 or len(tail) < _TAIL:
            published += map(_alone, group)
        else:
            published += _together(group, everybody, limit)
    return published


def _alone(output: Output) -> Publish:
    header = pack(Kind.BYTES, output.link, output.number, output.allowed)
    return Publish(output.topic, [memoryview(header), *output.parts])


def _together(group: list[Output], everybody: str, limit: int) -> Iterable[Publish]:
    """Yield payloads, each with the bytes that the others have in common with its first output."""
    begun: list[Output] = []
    sections: list[Section] = []
    body = b""
    size = 0
    for output in group:
        last = bytes(output.parts[-1])
        common = _common(body, last) if begun else len(last)
        own = b"".join([*output.parts[:-1], last[: len(last) - common]])
        more = SECTION.size + len(own)
        if begun and (len(sections) == SECTIONS or size + more > limit):
            yield _published(begun, sections, body, everybody)
            begun, sections, body = [], [], b""
            own, common = b"".join(output.parts[:-1]), len(last)
            more = SECTION.size + len(own)
        if not begun:
            body, size = last, HEADER.size + len(last)
        begun.append(output)
        sections.append(Section(output.link, output.number, output.allowed, own, common))
        size += more
    yield _published(begun, sections, body, everybody)


def _published(outputs: list[Output], sections: list[Section], body: bytes, everybody: str) -> Publish:
    return _alone(outputs[0]) if len(outputs) == 1 else Publish(everybody, share(sections, body))


def _common(one: bytes, other: bytes) -> int:
    """Return the number of equal bytes at the ends of both."""
    if one == other:
        return len(one)
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[-middle:] == other[-middle:]:
            low = middle
        else:
            high = middle - 1
    return low
