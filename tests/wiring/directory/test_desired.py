"""What a client wants, over any number of links."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from redpoll import RedpollError
from redpoll.wiring.directory import desired as module
from redpoll.wiring.directory.desired import DesiredState, Standing
from redpoll.wiring.directory.entries import Entry, Key
from redpoll.wiring.directory.table import LookupResult, Outcome, RegistrationResult
from tests.wiring.directory.support import HERE, OWNER, THERE, entry

E: Key = ("exchange", "E")
ITEM = Entry(*E, HERE, "distribute", OWNER)
YES = RegistrationResult(Outcome.REGISTERED)
NO = RegistrationResult(Outcome.TAKEN)


def ignore(_: object) -> None:
    """A callback that does nothing."""


def test_a_name_that_is_had() -> None:
    """Names count when the directory has said that they are ours; while it has not, nobody knows how many they are."""
    desired = DesiredState(ignore)
    registration = desired.register(ITEM)
    counts = [desired.count]
    assert not desired.answered(registration, YES)
    counts.append(desired.count)
    desired.begin()
    counts.append(desired.count)
    assert counts == [None, 1, None]
    assert registration.standing is Standing.ASKED
    desired.drop(registration)
    assert desired.count == 0


def test_a_name_that_is_lost() -> None:
    """That a name is another's is told once, and only of one that was ours; then it is told anew."""
    desired = DesiredState(ignore)
    registration = desired.register(ITEM)
    assert not desired.answered(registration, NO)
    assert desired.lost == []
    desired.answered(registration, YES)
    assert [desired.answered(registration, NO) for _ in range(2)] == [True, False]
    assert desired.lost == [registration]
    assert desired.count == 0
    desired.begin()
    assert not desired.answered(registration, NO)
    desired.answered(registration, YES)
    assert desired.lost == []
    assert desired.answered(registration, NO)


def test_a_name_registered_again_is_not_dropped_with_the_first() -> None:
    """The end of an earlier registration leaves a later one of the same name."""
    desired = DesiredState(ignore)
    first = desired.register(ITEM)
    second = desired.register(replace(ITEM, address=THERE))
    desired.drop(first)
    assert desired.registrations == {E: second}


def test_who_watches_is_told_once() -> None:
    """A change is told once, whatever repeats it; what was seen before something that is known is not told."""
    told: list[Entry | None] = []
    desired = DesiredState(ignore)
    watch, new = desired.watch(E, told.append)
    assert new
    assert not watch.known
    desired.saw(E, LookupResult(5, entry(), True))
    desired.saw(E, LookupResult(6, entry(), True))
    desired.saw(E, LookupResult(4, None, True))
    desired.saw(E, LookupResult(7, entry(address=THERE), True))
    desired.saw(("queue", "E"), LookupResult(8, None, True))
    assert told == [entry(), entry(address=THERE)]
    assert (watch.known, watch.entry) == (True, entry(address=THERE))


def test_what_is_not_known_yet_is_not_told() -> None:
    """A directory in its first lease that does not see a name says nothing of it, and what was known before holds."""
    told: list[Entry | None] = []
    desired = DesiredState(ignore)
    desired.watch(E, told.append)
    desired.saw(E, LookupResult(1, entry(), True))
    desired.begin()
    assert desired.unseen == [E]
    desired.saw(E, LookupResult(1, None, False))
    assert told == [entry()]
    assert desired.unseen == []
    desired.saw(E, LookupResult(2, entry(), True))
    assert told == [entry()]
    desired.saw(E, LookupResult(3, None, True))
    assert told == [entry(), None]


def test_several_watch_one_name() -> None:
    """The directory is asked once; who comes later learns what is known; the last one to go ends it."""
    ended: list[Key] = []
    one: list[Entry | None] = []
    two: list[Entry | None] = []
    desired = DesiredState(ended.append)
    first, _ = desired.watch(E, one.append)
    desired.saw(E, LookupResult(1, entry(), True))
    second, new = desired.watch(E, two.append)
    assert not new
    desired.remind(second)
    assert one == two == [entry()]
    first.cancel()
    first.cancel()
    assert ended == []
    desired.saw(E, LookupResult(2, None, True))
    second.cancel()
    assert (one, two) == ([entry()], [entry(), None])
    assert (ended, desired.watched) == ([E], [])
    desired.remind(second)
    desired.saw(E, LookupResult(3, entry(), True))
    assert two == [entry(), None]


def test_a_watch_that_another_ends() -> None:
    """One that is cancelled by the callback of another hears nothing more."""
    desired = DesiredState(ignore)
    told: list[Entry | None] = []
    desired.watch(E, lambda _: second.cancel())
    second, _ = desired.watch(E, told.append)
    desired.saw(E, LookupResult(1, entry(), True))
    assert told == []


def test_a_callback_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and the others are told."""
    desired = DesiredState(ignore)
    told: list[Entry | None] = []

    def fail(_: object) -> None:
        raise KeyError("callback")

    desired.watch(E, fail)
    desired.watch(E, told.append)
    with caplog.at_level(logging.ERROR, "redpoll.wiring"):
        desired.saw(E, LookupResult(1, entry(), True))
    assert told == [entry()]
    assert "exchange 'E'" in caplog.text


def test_wishes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One client has and watches no more names than its bound; what it has it may change."""
    assert module.MAX_NAMES == 10_000
    monkeypatch.setattr(module, "MAX_NAMES", 1)
    desired = DesiredState(ignore)
    desired.register(ITEM)
    desired.register(ITEM)
    with pytest.raises(RedpollError, match="at most 1 names"):
        desired.register(replace(ITEM, name="F"))
    desired.watch(E, ignore)
    desired.watch(E, ignore)
    with pytest.raises(RedpollError, match="watches at most 1"):
        desired.watch(("exchange", "F"), ignore)
