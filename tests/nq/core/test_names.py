"""The words of the facade."""

from __future__ import annotations

import pytest

from redpoll.nq import Protocol, Purpose, SessionState


def test_the_words_and_their_order() -> None:
    """The members are net-queue's, in its order: programs list them for their users."""
    assert list(Protocol) == ["tcp", "mqtt", "grpc"]
    assert list(Purpose) == ["server", "client"]


@pytest.mark.parametrize("word", [*Protocol, *Purpose])
def test_they_are_strings(word: Protocol | Purpose) -> None:
    """A member is its text, so that a command line's choice is one."""
    assert isinstance(word, str)
    assert f"{word}" == word.value
    assert type(word)(word.value) is word


def test_states_combine() -> None:
    """A session can be readable, writable, both or neither."""
    both = SessionState.READABLE | SessionState.WRITABLE
    assert SessionState.READABLE in both
    assert SessionState.WRITABLE in both
    assert not SessionState(0)
