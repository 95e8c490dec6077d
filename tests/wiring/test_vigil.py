"""When a queue keeps its loop looking for the next message."""

from __future__ import annotations

from redpoll.wiring.vigil import LONGEST, Vigil

BRIEF, LONG = LONGEST / 2, 2 * LONGEST


def wait(vigil: Vigil, taken: int, seconds: float) -> bool:
    """One wait of so many seconds; whether it was looked through."""
    looked = vigil.begin(taken)
    vigil.end(seconds)
    return looked


def run(vigil: Vigil, count: int, seconds: float, *, start: int = 0, each: int = 1) -> list[bool]:
    """So many waits in a row, with so many messages taken between two of them."""
    return [wait(vigil, start + each * number, seconds) for number in range(count)]


def test_it_looks_where_waits_are_short() -> None:
    """After eight short waits in a row, with a message or two between them, the next is looked through."""
    assert run(Vigil(), 10, BRIEF) == [False] * 8 + [True] * 2


def test_it_sleeps_where_waits_are_long() -> None:
    """Waits that last longer than it would look are never looked through."""
    assert not any(run(Vigil(), 100, LONG))


def test_it_sleeps_where_messages_come_in_a_stream() -> None:
    """Where many messages come between two waits it sleeps: what sends them may need the processor."""
    assert not any(run(Vigil(), 100, BRIEF, each=3))


def test_one_long_wait_starts_anew() -> None:
    """A long wait, however many short ones were before it, has eight more before one is looked through."""
    vigil = Vigil()
    run(vigil, 7, BRIEF)
    wait(vigil, 7, LONG)
    assert run(vigil, 9, BRIEF, start=8) == [False] * 8 + [True]


def test_looking_in_vain_makes_it_slower_to_look_again() -> None:
    """Each time that it looked in vain twice as many short waits are needed, up to some thousand."""
    vigil = Vigil()
    needed = []
    taken = 0
    for _ in range(12):
        count = 0
        while not wait(vigil, taken, BRIEF):
            taken += 1
            count += 1
        needed.append(count)
        assert wait(vigil, taken, LONG)
    assert needed == [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 4096, 4096]
