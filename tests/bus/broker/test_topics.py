"""Which patterns match which subjects."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll.bus.broker.topics import Topics
from redpoll.errors import ConfigError

WORDS = st.sampled_from(("a", "b", "ab"))
SUBJECTS = st.lists(WORDS, min_size=1, max_size=5).map(".".join)
PATTERNS = st.lists(WORDS | st.sampled_from(("*", "#", "#")), min_size=1, max_size=5).map(".".join)


def matches(pattern: str, subject: str) -> bool:
    """Say the same by a regular expression."""
    parts = [
        "(?:[^.]+\\.)*" if word == "#" else "[^.]+\\." if word == "*" else f"{word}\\." for word in pattern.split(".")
    ]
    return re.fullmatch("".join(parts), f"{subject}.") is not None


@given(st.lists(PATTERNS, max_size=8), st.lists(PATTERNS, max_size=4), st.lists(SUBJECTS, max_size=8))
def test_matching_is_what_a_regular_expression_says(
    patterns: list[str], removed: list[str], subjects: list[str]
) -> None:
    """A target is found by each of its patterns, once, until the last of them is removed."""
    topics: Topics[str] = Topics()
    for pattern in (*patterns, *removed):
        topics.add(pattern, pattern)
        topics.add(pattern, "all")
    for subject in subjects:
        topics.match(subject)
    for pattern in removed:
        topics.remove(pattern, pattern)
        topics.remove(pattern, "all")
    assert topics.count == 2 * len(patterns)
    for subject in subjects:
        found = topics.match(subject)
        wanted = {pattern for pattern in patterns if matches(pattern, subject)}
        assert len(found) == len(set(found))
        assert set(found) == (wanted | {"all"} if wanted else set())
    for pattern in patterns:
        topics.remove(pattern, pattern)
        topics.remove(pattern, "all")
    assert not topics._root.words


@pytest.mark.parametrize("subject", ["", "a.*", "#", "x" * 256])
def test_a_subject_has_no_wildcards(subject: str) -> None:
    """What is no subject is refused, each time."""
    topics: Topics[str] = Topics()
    for _ in range(2):
        with pytest.raises(ConfigError):
            topics.match(subject)


def test_hostile_patterns_cost_little() -> None:
    """Patterns full of wildcards are matched in a time that grows with their words, not with their combinations."""
    topics: Topics[int] = Topics()
    for number in range(50):
        topics.add(".".join(["#", "a"] * 40 + [str(number)]), number)
    begun = time.process_time()
    assert topics.match(".".join(["a"] * 120)) == ()
    assert time.process_time() - begun < 2.0


def test_what_is_remembered_is_bounded() -> None:
    """However many subjects there are, only so many are remembered."""
    topics: Topics[str] = Topics()
    topics.add("#", "all")
    for number in range(10_000):
        assert topics.match(f"s.{number}") == ("all",)
    assert len(topics._found) <= 4_096
