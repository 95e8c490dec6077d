"""What a notification is on its way, and which are wanted."""

from __future__ import annotations

import gzip
from typing import Any

import pytest

from redpoll.bus import Envelope, Payloads
from redpoll.bus.notifications import Notification, NotificationFilter
from redpoll.bus.notifications.records import pack, unpack
from redpoll.errors import BadPayload, ConfigError

PAYLOADS = Payloads()


def notification(**fields: Any) -> Notification:
    """A notification with some fields."""
    made: dict[str, Any] = {
        "event": "compute.started",
        "payload": {"state": "active", "size": 3, "none": None},
        "publisher": "compute.host-1",
        "priority": "info",
        "id": "1",
        "timestamp": 2.0,
        "headers": {"tenant": "7"},
    }
    return Notification(**made | fields)


@pytest.mark.parametrize(
    ("given", "does"),
    [
        ({}, True),
        ({"publisher": "compute"}, True),
        ({"publisher": "host-1"}, False),
        ({"event": r"compute\.(started|stopped)$"}, True),
        ({"event": "started"}, False),
        ({"publisher": "compute", "event": "network"}, False),
        ({"payload": {"state": "act"}}, True),
        ({"payload": {"state": "ctive"}}, False),
        ({"payload": {"missing": ".*"}}, False),
        ({"payload": {"size": "3"}}, False),
        ({"payload": {"none": ".*"}}, False),
        ({"headers": {"tenant": "7$"}}, True),
        ({"headers": {"tenant": "8"}}, False),
        ({"headers": {"tenant": "7"}, "payload": {"state": "x"}}, False),
    ],
)
def test_filters_match_from_the_beginning(given: dict[str, Any], does: bool) -> None:
    """Oslo 13: all that is given has to match, from the beginning; what is missing or no text does not."""
    assert NotificationFilter(**given).matches(notification()) is does


def test_a_filter_needs_expressions() -> None:
    """What is no regular expression is refused at once; a payload that is no mapping matches none."""
    with pytest.raises(ConfigError, match="event"):
        NotificationFilter(event="(")
    assert not NotificationFilter(payload={"a": "."}).matches(notification(payload=[1]))


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("payload", [None, 3, "x" * 10_000, {"a": [1, 2]}, bytes(range(256)) * 3])
def test_a_notification_comes_as_it_was(payload: Any, compress: bool) -> None:
    """What is packed is unpacked to the same; compression makes it smaller where it can."""
    made = notification(payload=payload)
    envelope = pack(PAYLOADS, made, compress)
    assert unpack(PAYLOADS, envelope, 1, 2**20) == made
    if compress and payload == "x" * 10_000:
        assert len(envelope.body) < 200
        assert gzip.decompress(envelope.body)


def test_what_is_no_notification_is_refused() -> None:
    """What lacks a field, is cut short, or grows beyond the limit cannot be read, and takes no memory."""
    envelope = pack(PAYLOADS, notification(payload="x" * 100_000), True)
    meta = dict(envelope.meta or {})
    wrong = [
        (Envelope("msgpack", b"\xc0"), 2**20),
        (envelope, 50_000),
        (envelope._replace(body=bytes(envelope.body)[:-20]), 2**20),
        (envelope._replace(body=b"none"), 2**20),
        (envelope._replace(meta={**meta, "priority": "loud"}), 2**20),
        (envelope._replace(meta={**meta, "id": 3}), 2**20),
    ]
    for each, limit in wrong:
        with pytest.raises(BadPayload):
            unpack(PAYLOADS, each, 1, limit)
