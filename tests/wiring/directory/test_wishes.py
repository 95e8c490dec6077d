"""What a client wants, over any number of links."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from redpoll import RedpollError
from redpoll.wiring.directory import wishes as module
from redpoll.wiring.directory.entries import Entry, Key
from redpoll.wiring.directory.table import Outcome, Seen, Verdict
from redpoll.wiring.directory.wishes import Standing, Wishes
from tests.wiring.directory.support import HERE, OWNER, THERE, entry

E: Key = ("exchange", "E")
ITEM = Entry(*E, HERE, "distribute", OWNER)
YES = Verdict(Outcome.REGISTERED)
NO = Verdict(Outcome.TAKEN)


def ignore(_: object) -> None:
    """A callback that does nothing."""


def test_a_name_that_is_had() -> None:
    """Names count when the directory has said that they are ours; while it has not, nobody knows how many they are."""
    wishes = Wishes(ignore)
    registration = wishes.register(ITEM)
    counts = [wishes.count]
    assert not wishes.answered(registration, YES)
    counts.append(wishes.count)
    wishes.begin()
    counts.append(wishes.count)
    assert counts == [None, 1, None]
    assert registration.standing is Standing.ASKED
    wishes.drop(registration)
    assert wishes.count == 0


def test_a_name_that_is_lost() -> None:
    """That a name is another's is told once, and only of one that was ours; then it is told anew."""
    wishes = Wishes(ignore)
    registration = wishes.register(ITEM)
    assert not wishes.answered(registration, NO)
    assert wishes.lost == []
    wishes.answered(registration, YES)
    assert [wishes.answered(registration, NO) for _ in range(2)] == [True, False]
    assert wishes.lost == [registration]
    assert wishes.count == 0
    wishes.begin()
    assert not wishes.answered(registration, NO)
    wishes.answered(registration, YES)
    assert wishes.lost == []
    assert wishes.answered(registration, NO)


def test_a_name_registered_again_is_not_dropped_with_the_first() -> None:
    """The end of an earlier registration leaves a later one of the same name."""
    wishes = Wishes(ignore)
    first = wishes.register(ITEM)
    second = wishes.register(replace(ITEM, address=THERE))
    wishes.drop(first)
    assert wishes.registrations == {E: second}


def test_who_watches_is_told_once() -> None:
    """A change is told once, whatever repeats it; what was seen before something that is known is not told."""
    told: list[Entry | None] = []
    wishes = Wishes(ignore)
    watch, new = wishes.watch(E, told.append)
    assert new
    assert not watch.known
    wishes.saw(E, Seen(5, entry(), True))
    wishes.saw(E, Seen(6, entry(), True))
    wishes.saw(E, Seen(4, None, True))
    wishes.saw(E, Seen(7, entry(address=THERE), True))
    wishes.saw(("queue", "E"), Seen(8, None, True))
    assert told == [entry(), entry(address=THERE)]
    assert (watch.known, watch.entry) == (True, entry(address=THERE))


def test_what_is_not_known_yet_is_not_told() -> None:
    """A directory in its first lease that does not see a name says nothing of it, and what was known before holds."""
    told: list[Entry | None] = []
    wishes = Wishes(ignore)
    wishes.watch(E, told.append)
    wishes.saw(E, Seen(1, entry(), True))
    wishes.begin()
    assert wishes.unseen == [E]
    wishes.saw(E, Seen(1, None, False))
    assert told == [entry()]
    assert wishes.unseen == []
    wishes.saw(E, Seen(2, entry(), True))
    assert told == [entry()]
    wishes.saw(E, Seen(3, None, True))
    assert told == [entry(), None]


def test_several_watch_one_name() -> None:
    """The directory is asked once; who comes later learns what is known; the last one to go ends it."""
    ended: list[Key] = []
    one: list[Entry | None] = []
    two: list[Entry | None] = []
    wishes = Wishes(ended.append)
    first, _ = wishes.watch(E, one.append)
    wishes.saw(E, Seen(1, entry(), True))
    second, new = wishes.watch(E, two.append)
    assert not new
    wishes.remind(second)
    assert one == two == [entry()]
    first.cancel()
    first.cancel()
    assert ended == []
    wishes.saw(E, Seen(2, None, True))
    second.cancel()
    assert (one, two) == ([entry()], [entry(), None])
    assert (ended, wishes.watched) == ([E], [])
    wishes.remind(second)
    wishes.saw(E, Seen(3, entry(), True))
    assert two == [entry(), None]


def test_a_watch_that_another_ends() -> None:
    """One that is cancelled by the callback of another hears nothing more."""
    wishes = Wishes(ignore)
    told: list[Entry | None] = []
    wishes.watch(E, lambda _: second.cancel())
    second, _ = wishes.watch(E, told.append)
    wishes.saw(E, Seen(1, entry(), True))
    assert told == []


def test_a_callback_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and the others are told."""
    wishes = Wishes(ignore)
    told: list[Entry | None] = []

    def fail(_: object) -> None:
        raise KeyError("callback")

    wishes.watch(E, fail)
    wishes.watch(E, told.append)
    with caplog.at_level(logging.ERROR, "redpoll.wiring"):
        wishes.saw(E, Seen(1, entry(), True))
    assert told == [entry()]
    assert "exchange 'E'" in caplog.text


def test_wishes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One client has and watches no more names than its bound; what it has it may change."""
    assert module.MAX_NAMES == 10_000
    monkeypatch.setattr(module, "MAX_NAMES", 1)
    wishes = Wishes(ignore)
    wishes.register(ITEM)
    wishes.register(ITEM)
    with pytest.raises(RedpollError, match="at most 1 names"):
        wishes.register(replace(ITEM, name="F"))
    wishes.watch(E, ignore)
    wishes.watch(E, ignore)
    with pytest.raises(RedpollError, match="watches at most 1"):
        wishes.watch(("exchange", "F"), ignore)
