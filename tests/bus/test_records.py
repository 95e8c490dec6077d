"""Specs, capabilities, receipts: the plain values of the bus."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll.bus import Capabilities, Envelope, Publication, QueueSpec, Receipt
from redpoll.bus.broker.topics import Topics
from redpoll.bus.records import check_publishing, check_subject, task_id, words_match
from redpoll.errors import ConfigError, Unsupported, UsageError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "a.*"),
        ("name", "#"),
        ("name", "ü" * 128),
        ("kind", "tasks"),
        ("durable", 1),
        ("max_length", 0),
        ("max_bytes", None),
        ("at_limit", "drop"),
        ("expires", 0),
        ("ttl", "1"),
        ("priorities", 33),
        ("max_attempts", 0),
        ("dead_letter", "a.#"),
        ("topics", ["a"]),
        ("topics", ("",)),
    ],
)
def test_a_bad_setting_is_named(field: str, value: Any) -> None:
    """A queue cannot be given a setting that it cannot have."""
    with pytest.raises(ConfigError) as caught:
        QueueSpec(**{"name": "night", field: value})
    assert caught.value.field == field


def test_names_may_hold_what_is_no_wildcard() -> None:
    """Only whole words are wildcards."""
    check_subject("name", "c#.a*b")
    check_subject("topics", "a.*.#", pattern=True)


def test_the_first_difference_is_found() -> None:
    """Two specs that differ name a field."""
    spec = QueueSpec("night")
    assert spec.difference(QueueSpec("night")) is None
    assert spec.difference(dataclasses.replace(spec, ttl=5, priorities=2)) == "ttl"


def test_a_missing_capability_is_refused() -> None:
    """What an engine cannot do is named, with the remedy."""
    can = Capabilities(engine="amqp", confirm="replicated", results="live", max_body=1, cancel=False, priorities=1)
    can.require("delay", "a delay")
    for name in ("cancel", "priorities"):
        with pytest.raises(Unsupported, match=r"amqp:// does not support it \(use a hub\)"):
            can.require(name, "it", "use a hub")


def test_a_receipt_names_the_task() -> None:
    """An id is the store, the serial and the random bits; what no queue took has none."""
    assert Receipt("s", (17 << 64) | 0xAB).id == task_id("s", (17 << 64) | 0xAB) == "s-17-00000000000000ab"
    assert Receipt("s", 0).id == ""
    assert repr(Receipt("s", 1 << 64, True)) == "<Receipt s-1-0000000000000000 duplicate>"


@pytest.mark.asyncio
async def test_a_receipt_is_its_own_result() -> None:
    """Awaiting a receipt gives it back."""
    receipt = Receipt("s", 1)
    assert await receipt is receipt


def test_a_successor_has_one_end() -> None:
    """A task has a ttl or a deadline."""
    with pytest.raises(UsageError, match="not both"):
        Publication("night", Envelope("raw", b""), ttl=1, deadline=1)


@pytest.mark.parametrize("text", ["\udcff", "é" * 128, "x" * 256])
def test_names_and_keys_that_cannot_be_sent(text: str) -> None:
    """Names and keys are UTF-8 of up to 255 bytes."""
    with pytest.raises(ConfigError):
        check_subject("name", text)
    with pytest.raises(ConfigError):
        check_publishing(0, 0.0, dedup=text)
    check_publishing(0, 0.0, dedup="é" * 127)


@given(st.text("ab*#.", min_size=1, max_size=9), st.text("ab.\n", min_size=1, max_size=9))
def test_patterns_match_alike_everywhere(pattern: str, text: str) -> None:
    """A pattern matches words here as it does in a broker."""
    topics: Topics[None] = Topics()
    topics.add(pattern, None)
    assert words_match(pattern)(text) is bool(topics.match(text))


def test_whole_seconds_take_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times that are ints are checked in as few steps as floats: most timeouts are written as ints."""
    monkeypatch.setattr("redpoll.bus.records._PUBLISHING", None)
    check_publishing(0, 1, None, 30, 30.0)
    check_publishing(3, 0.0, 5, None, 0)
