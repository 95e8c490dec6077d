"""What a store said is on disk is there after a kill and after a loss of power, and it is all of a turn or nothing."""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from redpoll.bus import OutcomeKind, QueueSpec
from redpoll.bus.broker.outputs import Declared, Ended, Put
from redpoll.bus.engines.hub import bodies, disk
from redpoll.bus.engines.hub.opening import open_store
from redpoll.platforms import KILL
from tests.bus.engines.hub.lossy import Disk
from tests.bus.engines.hub.support import everything
from tests.bus.engines.hub.writer import BEHIND, turn
from tests.bus.patterns import until
from tests.cli.support import environment
from tests.source_tree import ROOT


async def check(path: Path, confirmed: int, begun: int | None = None) -> int:
    """Look whether a store has the turns that were confirmed, each of them whole; return how many turns it has."""
    store = open_store(path, reserve=65_536)
    try:
        tasks = [write for write in await everything(store) if type(write) is Put]
        last = store.serial
        assert last >= confirmed
        assert begun is None or last <= begun
        assert [each.id >> 64 for each in tasks] == list(range(max(1, last - BEHIND + 1), last + 1))
        for each in tasks:
            assert each == turn(each.id >> 64)[0]
        return last
    finally:
        await store.close()


def kill_one(path: Path, rounds: int, seed: int) -> None:
    """Kill a process that writes, again and again, at random moments."""
    seeded = random.Random(seed)
    last = 0
    for _ in range(rounds):
        command = [sys.executable, "-m", "tests.bus.engines.hub.writer", str(path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment())
        assert process.stdout is not None
        confirmed = last
        enough = last + seeded.randrange(1, 3_000)
        while confirmed < enough:
            line = process.stdout.readline()
            assert line.endswith("\n")
            confirmed = int(line)
        process.send_signal(KILL)
        # What it had said by then counts too.
        for line in process.communicate()[0].splitlines(keepends=True):
            confirmed = int(line) if line.endswith("\n") else confirmed
        last = asyncio.run(check(path, confirmed))


def test_killed_at_random(tmp_path: Path) -> None:
    """After each kill everything that was confirmed is there, and the next process goes on from there."""
    kill_one(tmp_path, 3, 1)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_killed_at_random_for_long(tmp_path: Path) -> None:
    """The same, a hundred times."""
    kill_one(tmp_path, 100, 2)


async def lose_power(path: Path, turns: int, seed: int, share: float) -> int:
    """Write turns, take a picture of the disk at random moments as a loss of power leaves it, and check each; how many."""
    seeded = random.Random(seed)
    begun = confirmed = 0
    pictures: list[tuple[int, int, dict[str, bytes]]] = []

    def happened() -> None:
        if seeded.random() < share:
            pictures.append((confirmed, begun, lossy.lose_power(seeded.random() < 0.5)))

    def confirm(number: int) -> None:
        nonlocal confirmed
        assert number == confirmed + 1
        confirmed = number

    lossy = Disk(seed, happened)
    store = open_store(path / "store", reserve=65_536, connect=lossy.connect, open_bodies=lossy.open_bodies)
    for number in range(1, turns + 1):
        begun = number
        store.write(turn(number), lambda number=number: confirm(number))  # type: ignore[misc]
        if seeded.random() < 0.2:
            await asyncio.sleep(0)
        await until(lambda number=number: number - confirmed < 50)  # type: ignore[misc]
    await store.close()
    assert confirmed == turns
    for number, (least, most, files) in enumerate(pictures):
        folder = path / str(number)
        folder.mkdir()
        for name, contents in files.items():
            (folder / name).write_bytes(contents)
        await check(folder, least, most)
    return len(pictures)


@pytest.mark.asyncio
async def test_power_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was confirmed is there, whatever is lost or torn of the rest, in the midst of commits and checkpoints."""
    monkeypatch.setattr(disk, "_CHECKPOINT", 100_000)
    monkeypatch.setattr(bodies, "_FRESH", 0)
    assert await lose_power(tmp_path, 1_000, 3, 0.03) > 20


@pytest.mark.asyncio
async def test_power_loss_while_bodies_are_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk has large bodies moved to the front of their file; at no moment of that is one lost."""
    seeded, pictures, moving = random.Random(7), list[dict[str, bytes]](), False

    def happened() -> None:
        if moving:
            pictures.append(lossy.lose_power(seeded.random() < 0.5))

    lossy = Disk(7, happened)
    puts = [put for number in range(1, 21) for put in turn(100 * number) if type(put) is Put]
    store = open_store(tmp_path / "store", connect=lossy.connect, open_bodies=lossy.open_bodies)
    stored = asyncio.Event()
    store.write([Declared(QueueSpec("q"), False), *puts], stored.set)
    await stored.wait()
    ends = [Ended(put.id, False, OutcomeKind.RESULT, None, 0, "", 0, 0.0) for put in puts[:15]]
    store.write([*ends], lambda: None)
    await store.close()
    file = tmp_path / "store" / "hub.bodies"
    size = file.stat().st_size
    (tmp_path / "store" / "hub.reserve").unlink()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 0}))
    monkeypatch.setattr(disk, "_WAIT", 0.001)
    store = open_store(tmp_path / "store", connect=lossy.connect, open_bodies=lossy.open_bodies)
    moving = True
    assert await store.bodies([puts[-1].id]) == [puts[-1].payload]
    await until(lambda: file.stat().st_size < size / 2)
    moving = False
    await store.close()
    monkeypatch.setattr(disk, "_WAIT", 60.0)
    assert len(pictures) > 10
    for number, files in enumerate(pictures):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, contents in files.items():
            (folder / name).write_bytes(contents)
        store = open_store(folder)
        assert [write for write in await everything(store) if type(write) is Put] == puts[15:]
        await store.close()


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.asyncio
async def test_power_loss_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The same, for longer and with other moments."""
    monkeypatch.setattr(disk, "_CHECKPOINT", 300_000)
    monkeypatch.setattr(bodies, "_FRESH", 0)
    monkeypatch.setattr(bodies, "_LEAST", 1_000)
    assert await lose_power(tmp_path, 5_000, seed, 0.03) > 100
