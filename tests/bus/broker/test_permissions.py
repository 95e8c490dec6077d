"""Who may do what."""

from __future__ import annotations

import pytest
from hypothesis import given

from redpoll.bus.broker.permissions import Permissions, _covers
from redpoll.errors import ConfigError, NotAuthorized
from tests.bus.broker.support import Desk
from tests.bus.broker.test_topics import PATTERNS, SUBJECTS, matches


def test_what_is_not_named_is_not_allowed() -> None:
    """A word is allowed for the names that its patterns match, and for no others."""
    rights = Permissions("ann", {"submit": ["night", "images.#"]})
    assert rights.allow("submit", "images.small")
    assert not rights.allow("submit", "day")
    assert not rights.allow("work", "night")
    with pytest.raises(NotAuthorized, match="'ann' may not work 'night'"):
        rights.require("work", "night")


def test_words_and_patterns_are_checked() -> None:
    """A word that does not exist, or no pattern, is refused."""
    with pytest.raises(ConfigError, match="must be one of"):
        Permissions("ann", {"read": ["#"]})
    with pytest.raises(ConfigError):
        Permissions("ann", {"work": [""]})


@given(PATTERNS, PATTERNS, SUBJECTS)
def test_a_pattern_is_covered_only_by_wider_ones(allowed: str, asked: str, subject: str) -> None:
    """Where one pattern covers another, it matches each subject that the other one does."""
    if _covers(allowed.split("."), asked.split(".")) and matches(asked, subject):
        assert matches(allowed, subject)


@given(PATTERNS)
def test_each_pattern_covers_itself(pattern: str) -> None:
    """What is allowed may be asked for as it is, and everything covers everything."""
    assert _covers(["#"], pattern.split("."))
    if "#" not in pattern:
        assert _covers(pattern.split("."), pattern.split("."))


def test_permissions_are_for_the_name_behind_the_prefix() -> None:
    """The prefix of a pattern is cut off once; the name of a tasks' queue is the user's as a whole."""
    desk = Desk()
    titles = {
        ("rpc:calc", "rpc"): "calc",
        ("broadcast:a:b", "events"): "a:b",
        ("audit", "events"): "audit",
        ("night", "task"): "night",
        ("secret:night", "task"): "secret:night",
    }
    for (name, kind), title in titles.items():
        assert desk.declare(name, kind=kind).title == title
