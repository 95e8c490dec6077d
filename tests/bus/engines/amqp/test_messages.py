"""Envelopes and outcomes as messages of RabbitMQ."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll.bus import Envelope, Outcome, OutcomeKind
from redpoll.bus.engines.amqp import messages as m
from redpoll.bus.engines.amqp.wire import Properties
from redpoll.errors import DecodeError, PayloadTooLarge

_words = st.text(st.characters(codec="utf-8"), max_size=9)
_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False),
        _words,
        st.binary(max_size=9),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_words, inner, max_size=3),
    max_leaves=6,
)
_heads = st.none() | st.dictionaries(_words | st.sampled_from(["x-death", "CC"]), _values, max_size=4)


@given(_heads, _heads, st.sampled_from(["msgpack", "json", "raw", "buffer", "pickle"]))
def test_envelope_comes_back(meta: dict[str, Any] | None, headers: dict[str, Any] | None, kind: str) -> None:
    """An envelope is what it was after the way through properties and headers, also where a table cannot hold it."""
    envelope = Envelope(kind, b"body", meta, headers)
    properties = m.properties_of(envelope, {"redpoll-attempts": 2}, message_id="id")
    assert m.envelope_of(properties, b"body") == envelope
    assert properties.message_id == "id"


def test_other_programs_read_it() -> None:
    """Content types are those that others use, and the user's headers are headers."""
    properties = m.properties_of(Envelope("json", b"{}", {"m": 1}, {"trace": "x"}), {})
    assert (properties.content_type, properties.headers) == (
        "application/json",
        {"trace": "x", "redpoll-meta": {"m": 1}},
    )


def test_messages_of_others_are_envelopes() -> None:
    """A message of another program is an envelope: bytes where it names no type, its headers those of the user."""
    assert m.envelope_of(Properties(), b"x") == Envelope("raw", b"x")
    told = Properties("application/json", headers={"a": 1, "x-death": [], "CC": ["q"]})
    assert m.envelope_of(told, b"{}") == Envelope("json", b"{}", None, {"a": 1})


def test_the_head_is_bounded() -> None:
    """Meta and headers above their limit are refused, in a table or not."""
    for headers in ({"k": "x" * 70_000}, {"k": [2**64 - 1, "x" * 70_000]}, {"x-k": "x" * 70_000}):
        with pytest.raises(PayloadTooLarge):
            m.properties_of(Envelope("raw", b"", None, headers), {})


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(OutcomeKind.RESULT, Envelope("json", b"1")),
        Outcome(OutcomeKind.RESULT, Envelope("raw", b"")),
        Outcome(OutcomeKind.RESULT),
        Outcome(OutcomeKind.ERROR, Envelope("msgpack", b"e", {"kind": "ValueError"})),
        Outcome(OutcomeKind.DEAD, None, "why"),
    ],
)
def test_outcome_comes_back(outcome: Outcome) -> None:
    """An outcome is what it was after its way; it names the task, and the inbox of the worker."""
    properties, body = m.outcome_properties(outcome, "task", "inbox")
    assert m.outcome_of(properties, bytes(body)) == outcome
    assert (properties.correlation_id, properties.reply_to, properties.delivery_mode) == ("task", "inbox", 1)


def test_replies_of_others_are_results() -> None:
    """A reply without a kind is a result; one of an unknown kind is an error."""
    assert m.outcome_of(Properties(), b"x") == Outcome(OutcomeKind.RESULT, Envelope("raw", b"x"))
    with pytest.raises(DecodeError, match="unknown kind 99"):
        m.outcome_of(Properties(headers={"redpoll-outcome": 99}), b"")


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("expired", OutcomeKind.EXPIRED),
        ("maxlen", OutcomeKind.DEAD),
        ("delivery_limit", OutcomeKind.DEAD),
        ("rejected", OutcomeKind.DEAD),
    ],
)
def test_dead_letters_are_outcomes(reason: str, kind: OutcomeKind) -> None:
    """The reason for which the server took a task out of its queue is its outcome; the last reason comes first."""
    deaths = [{"reason": reason, "queue": "q"}, {"reason": "expired", "queue": "redpoll.delay.3"}]
    found = m.death(Properties(headers={"x-death": deaths}))
    assert found is not None
    assert found.kind is kind


def test_others_did_not_die() -> None:
    """A message without such a reason is no dead letter."""
    assert m.death(Properties()) is m.death(Properties(headers={"x-death": "?"})) is None
