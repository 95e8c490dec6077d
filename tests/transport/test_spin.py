"""Spinning: polling after reads and writes instead of sleeping, for as long as the Config says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from redpoll.transport.spin import Spin
from tests.node.support import make, to, turns, until, within


class _Loop:
    """Collects the callbacks of one turn, and counts turns that do not wait."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def turn(self) -> None:
        due, self.due = self.due, []
        for callback in due:
            callback()


def _spin(microseconds: int) -> tuple[_Loop, list[float], Spin]:
    loop = _Loop()
    now = [100.0]
    return loop, now, Spin(cast("asyncio.AbstractEventLoop", loop), microseconds, lambda: now[0])


def test_the_loop_polls_for_the_time_and_then_sleeps() -> None:
    """Something is due in each turn until the time is over, and nothing after it."""
    loop, now, spin = _spin(200)
    spin.extend()
    for _ in range(3):
        assert len(loop.due) == 1
        loop.turn()
    now[0] += 0.000199
    loop.turn()
    assert len(loop.due) == 1
    now[0] += 0.000002
    loop.turn()
    assert not loop.due


def test_each_read_and_write_extends_it() -> None:
    """The time counts from the last read or write, and however many there are, one callback is due in a turn."""
    loop, now, spin = _spin(200)
    for _ in range(5):
        spin.extend()
        spin.extend()
        assert len(loop.due) == 1
        now[0] += 0.000150
        loop.turn()
    now[0] += 0.000150
    loop.turn()
    assert not loop.due
    spin.extend()
    assert len(loop.due) == 1


def test_a_stopped_node_spins_no_more() -> None:
    """After `stop` the next turn is the last."""
    loop, _, spin = _spin(10_000)
    spin.extend()
    spin.stop()
    loop.turn()
    assert not loop.due


@pytest.mark.asyncio
async def test_a_node_spins_after_each_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends poll while messages pass, no more once they do not, and not by default."""
    extended: dict[Spin, int] = {}
    polls = 0
    extend, poll = Spin.extend, Spin._poll

    def counted(spin: Spin) -> None:
        extended[spin] = extended.get(spin, 0) + 1
        extend(spin)

    def polled(spin: Spin) -> None:
        nonlocal polls
        polls += 1
        poll(spin)

    monkeypatch.setattr(Spin, "extend", counted)
    monkeypatch.setattr(Spin, "_poll", polled)

    def echo(message: Any) -> bytes:
        return bytes(message.data)

    async with make(echo) as server, make() as client:
        await within(client.request(to(server)))
        assert not extended
    async with make(echo, spin=500) as server, make(spin=500) as client:
        for _ in range(3):
            await within(client.request(to(server)))
        spins = list(extended)
        assert len(spins) == 2
        assert min(extended.values()) >= 3
        assert polls
        await until(lambda: not any(spin._polling for spin in spins), "both ends sleep")
        before = polls
        await turns()
        assert polls == before
        await within(client.request(to(server)))
    await until(lambda: not any(spin._polling for spin in spins), "both ends sleep after the stop")
