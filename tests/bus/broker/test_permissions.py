"""Who may do what."""

from __future__ import annotations

from collections.abc import Callable

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


@pytest.mark.parametrize(
    "words", [["submit"], ["work"], ["publish"], ["subscribe"], ["call"], ["serve"], ["administer"]]
)
def test_each_verb_needs_its_word(words: list[str]) -> None:
    """A peer can do at the broker what its permissions name, and nothing else."""
    desk = Desk()
    desk.declare("rpc:calc", kind="rpc")
    desk.boss.rights = Permissions("ann", {word: ["q", "calc", "news"] for word in words})
    broker, boss = desk.broker, desk.boss
    verbs: dict[str, Callable[[], object]] = {
        "submit": lambda: desk.submit("x"),
        "call": lambda: desk.submit("x", "rpc:calc"),
        "work": lambda: desk.consume(boss),
        "serve": lambda: desk.consume(boss, queue="rpc:calc"),
        "publish": lambda: broker.intake.publish(boss, "news", "", 0, 0.0),
        "subscribe": lambda: broker.intake.subscribe(boss, ("news",)),
        "administer": lambda: desk.declare("q", ttl=1, update=True),
    }
    for word, verb in verbs.items():
        if word in words:
            verb()
        else:
            with pytest.raises(NotAuthorized):
                verb()


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
    desk.boss.rights = Permissions("ann", {"submit": ["night"]})
    desk.submit("x", "night")
    with pytest.raises(NotAuthorized):
        desk.submit("x", "secret:night")


def test_naming_a_queue_in_settings_needs_submit_there() -> None:
    """Who may use a queue cannot make its dead letters fill another one, nor bind it to subjects of others."""
    desk = Desk()
    desk.boss.rights = Permissions("ann", {"submit": ["mine"], "subscribe": ["my.#"]})
    desk.declare("mine")
    with pytest.raises(NotAuthorized, match="may not use 'other'"):
        desk.declare("other")
    desk.boss.rights = Permissions("ann", {"submit": ["new"], "subscribe": ["my.#"]})
    with pytest.raises(NotAuthorized, match="may not submit 'q'"):
        desk.declare("new", dead_letter="q")
    with pytest.raises(NotAuthorized, match="may not subscribe to"):
        desk.declare("new", topics=("#",))
    desk.declare("new", topics=("my.news",))
