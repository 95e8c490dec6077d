"""Looking after a store: whether its file is whole, and copies of it while it runs."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from redpoll.bus import OutcomeKind, QueueSpec
from redpoll.bus.broker.outputs import Declared, Ended, Put, Scheduled
from redpoll.bus.engines.hub import bodies, disk
from redpoll.bus.engines.hub.bodies import File
from redpoll.bus.engines.hub.opening import FORMAT, check_store, open_store, upgrade_store
from redpoll.bus.engines.hub.tables import LARGE
from redpoll.errors import StoreError
from tests.bus.engines.hub.support import everything
from tests.bus.engines.hub.writer import BEHIND, turn

SMALL = 65_536
#: What makes tables of those before tasks came after others.
WITHOUT_PARENTS = ("ALTER TABLE tasks DROP COLUMN parents", "ALTER TABLE dead DROP COLUMN parents")
#: The same before large bodies were in a file.
WITHOUT_LARGE = tuple(f"DROP INDEX large_{each}" for each in LARGE)


@pytest.mark.parametrize("least", [64 * 2**10, 1_000])
@pytest.mark.asyncio
async def test_backup_while_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    """A backup is the store at one moment, made in steps between commits; a hub of it has a higher epoch."""
    monkeypatch.setattr(disk, "_BACKUP", 1)
    monkeypatch.setattr(bodies, "_LEAST", least)
    monkeypatch.setattr(bodies, "_FRESH", 0)
    store = open_store(tmp_path / "hub", reserve=SMALL)
    confirmed: list[int] = []
    number = 0

    def write(count: int) -> None:
        nonlocal number
        for _ in range(count):
            number += 1
            store.write(turn(number), lambda number=number: confirmed.append(number))  # type: ignore[misc]

    write(500)
    target = tmp_path / "copy" / "hub.db"
    target.parent.mkdir()
    backup = asyncio.ensure_future(store.backup(target))
    while not backup.done():
        write(3)
        await asyncio.sleep(0)
    await backup
    assert [each.name for each in target.parent.iterdir()] == ["hub.db"]
    write(10)
    await store.close()
    assert confirmed == list(range(1, number + 1))
    copy = open_store(target.parent, reserve=SMALL)
    assert (copy.name, copy.epoch) == (store.name, store.epoch + 1_001)
    assert 500 <= copy.serial <= number - 10
    tasks = [write for write in await everything(copy) if type(write) is Put]
    assert tasks == [turn(each)[0] for each in range(copy.serial - BEHIND + 1, copy.serial + 1)]
    assert await copy.check() == []
    await copy.close()


class Reported(File):
    """A file of large bodies that calls a function when it was read."""

    def __init__(self, path: str, call: Callable[[], object]) -> None:
        super().__init__(path)
        self._call = call

    def read(self, offset: int, size: int) -> bytes:
        """Read, and call the function."""
        found = super().read(offset, size)
        self._call()
        return found


@pytest.mark.asyncio
async def test_backup_of_large_bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large bodies are in a backup, though their tasks ended before they were copied, and others came in their place."""
    monkeypatch.setattr(bodies, "_FRESH", 0)
    turns = iter(range(1, 1_000))

    def write() -> None:
        number = next(turns)
        # The last one is copied last.
        old = 100 * (21 - number)
        ends = [Ended((old << 64) + old, False, OutcomeKind.RESULT, None, 0, "", 0, 0.0)] if 10 < number < 21 else []
        store.write([turn(100 * number)[0], *ends], lambda: None)

    store = open_store(tmp_path / "hub", reserve=SMALL, open_bodies=lambda path: Reported(path, write))
    store.write([Declared(QueueSpec("q"), False)], lambda: None)
    for _ in range(10):
        write()
    (tmp_path / "copy").mkdir()
    await store.backup(tmp_path / "copy" / "hub.db")
    assert next(turns) > 15
    await store.close()
    copy = open_store(tmp_path / "copy", reserve=SMALL)
    assert [write for write in await everything(copy) if type(write) is Put] == [turn(100 * n)[0] for n in range(1, 11)]
    await copy.close()


@pytest.mark.asyncio
async def test_backups_that_cannot_be_made(tmp_path: Path) -> None:
    """A file that is there is not written over; a folder that is not there, and a store that was closed, are named."""
    store = open_store(tmp_path / "hub", reserve=SMALL)
    (tmp_path / "there").write_text("old")
    with pytest.raises(StoreError, match=r"backup to .*there: File exists"):
        await store.backup(tmp_path / "there")
    assert (tmp_path / "there").read_text() == "old"
    with pytest.raises(StoreError, match=r"backup to .*a\\x00b': a name has no NUL"):
        await store.backup(f"{tmp_path}/a\0b")
    with pytest.raises(StoreError, match=r"backup to .*hub\.db: No such file"):
        await store.backup(tmp_path / "nowhere" / "hub.db")
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(StoreError, match=r"backup to .*link: File exists"):
        await store.backup(tmp_path / "link")
    closing = asyncio.ensure_future(store.close())
    with pytest.raises(StoreError, match="was closed"):
        await asyncio.gather(store.backup(tmp_path / "late"), closing)
    await closing
    with pytest.raises(StoreError, match="was closed"):
        await store.check()
    assert not (tmp_path / "late").exists()


@pytest.mark.asyncio
async def test_two_backups_to_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of backups to one file at the same time one is made and the other refused; other files stay as they are."""
    monkeypatch.setattr(disk, "_BACKUP", 1)
    store = open_store(tmp_path / "hub", reserve=SMALL)
    for number in range(1, 500):
        store.write(turn(number), lambda: None)
    target = tmp_path / "copy" / "hub.db"
    target.parent.mkdir()
    (target.parent / "hub.db.part").write_text("another's")
    ends = await asyncio.gather(store.backup(target), store.backup(target), return_exceptions=True)
    assert [str(each) for each in ends if each] == [f"{tmp_path / 'hub'}: backup to {target}: File exists"]
    assert {each.name for each in target.parent.iterdir()} == {"hub.db", "hub.db.part"}
    assert (target.parent / "hub.db.part").read_text() == "another's"
    await store.close()
    assert check_store(target.parent) == []


@pytest.mark.asyncio
async def test_closing_ends_a_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is closed does not wait for a backup, of which nothing is left."""
    monkeypatch.setattr(disk, "_BACKUP", 1)
    store = open_store(tmp_path / "hub", reserve=SMALL)
    written = asyncio.Event()
    for number in range(1, 2_000):
        store.write(turn(number)[:2], lambda: None)
    store.write([], written.set)
    await written.wait()
    backup = asyncio.ensure_future(store.backup(tmp_path / "copy"))
    await asyncio.sleep(0)
    await store.close()
    with pytest.raises(StoreError, match="was closed before the backup was done"):
        await backup
    assert [each.name for each in tmp_path.iterdir()] == ["hub"]


@pytest.mark.asyncio
async def test_a_commit_that_fails_during_a_backup_ends_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that is made between two pages of a backup and fails is no failure of the backup alone."""
    monkeypatch.setattr(disk, "_BACKUP", 1)
    store = open_store(tmp_path / "hub", reserve=SMALL)
    failures: list[BaseException] = []
    store.failed = failures.append
    written = asyncio.Event()
    for number in range(1, 2_000):
        store.write(turn(number)[:2], lambda: None)
    store.write([], written.set)
    await written.wait()

    def fail(_: object) -> None:
        raise OSError(5, "Input/output error")

    backup = asyncio.ensure_future(store.backup(tmp_path / "copy"))
    await asyncio.sleep(0)
    monkeypatch.setattr(store, "_carry_out", fail)
    store.write(turn(3_000)[:2], lambda: failures.append(AssertionError("confirmed")))
    with pytest.raises(StoreError, match="Input/output error"):
        await backup
    await store.close()
    (failure,) = failures
    assert isinstance(failure, StoreError)
    assert "cannot be written" in str(failure)


@pytest.mark.asyncio
async def test_check(tmp_path: Path) -> None:
    """A whole file has no faults, one with a damaged page has; one that is not there, or is in use, is an error."""
    with pytest.raises(StoreError, match=r"there is no hub\.db"):
        check_store(tmp_path)
    store = open_store(tmp_path, reserve=SMALL)
    for number in range(1, 100):
        store.write(turn(number), lambda: None)
    assert await store.check() == []
    with pytest.raises(StoreError, match="is used by another hub"):
        check_store(tmp_path)
    await store.close()
    assert check_store(tmp_path) == []
    file = tmp_path / "hub.db"
    whole = bytearray(file.read_bytes())
    whole[-8 * 4_096 : -4_096] = b"\xff" * 7 * 4_096
    file.write_bytes(whole)
    assert check_store(tmp_path)
    file.write_bytes(b"nothing of a database" * 500)
    assert check_store(tmp_path) == ["file is not a database"]


def test_files_that_no_hub_has_written(tmp_path: Path) -> None:
    """An empty file, as of a hub that was killed as it began, is whole and needs no upgrade; another program's is refused."""
    (tmp_path / "hub.db").touch()
    assert check_store(tmp_path) == []
    assert upgrade_store(tmp_path) == FORMAT
    database = sqlite3.connect(tmp_path / "hub.db")
    database.execute("CREATE TABLE tasks (serial)")
    database.close()
    for look in (check_store, upgrade_store, open_store):
        with pytest.raises(StoreError, match=r"hub\.db is not a hub's"):
            look(tmp_path)
    database = sqlite3.connect(tmp_path / "hub.db")
    database.execute("DROP TABLE tasks")
    database.execute("PRAGMA user_version = -7")
    database.execute("VACUUM")
    database.execute("PRAGMA schema_version = 0")
    database.close()
    for look in (check_store, upgrade_store, open_store):
        with pytest.raises(StoreError, match=r"hub\.db is not a hub's: it has format -7, those of a hub begin at 1"):
            look(tmp_path)
    database = sqlite3.connect(tmp_path / "hub.db")
    database.execute("PRAGMA user_version = 99")
    database.close()
    for look in (check_store, upgrade_store, open_store):
        with pytest.raises(StoreError, match=r"hub\.db has format 99, the newest known here is"):
            look(tmp_path)


async def marked_as_format(number: int, folder: Path, *changes: str) -> None:
    """Make a store of one task, change its tables, and mark it as one of an earlier format."""
    store = open_store(folder, reserve=SMALL)
    store.write(turn(1), lambda: None)
    await store.close()
    changed(folder, number, *changes)


def changed(folder: Path, number: int, *changes: str) -> None:
    """Change the tables of a store, and mark it as one of an earlier format."""
    database = sqlite3.connect(folder / "hub.db")
    for statement in (*changes, f"PRAGMA user_version = {number}"):
        database.execute(statement)
    database.close()


@pytest.mark.asyncio
async def test_upgrade_of_tables_of_another_format(tmp_path: Path) -> None:
    """A file whose format is not that of its tables is not upgraded, and not changed; the error says so."""
    await marked_as_format(1, tmp_path)
    before = (tmp_path / "hub.db").read_bytes()
    with pytest.raises(
        StoreError, match="has format 1, but not the tables of that format: table schedules already exists"
    ):
        upgrade_store(tmp_path)
    assert (tmp_path / "hub.db").read_bytes() == before


@pytest.mark.asyncio
async def test_upgrade_of_the_third_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the third format has large bodies in its tables: they are read, and let go of, once it is upgraded."""
    with monkeypatch.context() as context:
        context.setattr(bodies, "_LEAST", 2**40)
        store = open_store(tmp_path, reserve=SMALL)
        for number in range(1, 101):
            store.write(turn(number), lambda: None)
        await store.close()
    assert (tmp_path / "hub.bodies").stat().st_size == 0
    (tmp_path / "hub.bodies").unlink()
    changed(tmp_path, 3, *WITHOUT_LARGE)
    with pytest.raises(StoreError, match="has format 3, this version has 4"):
        open_store(tmp_path)
    assert upgrade_store(tmp_path) == 3
    store = open_store(tmp_path, reserve=SMALL)
    expected = [turn(number)[0] for number in range(101 - BEHIND, 101)]
    assert [write for write in await everything(store) if type(write) is Put] == expected
    for number in range(101, 201):
        store.write(turn(number), lambda: None)
    later = [write for number in range(201 - BEHIND, 201) for write in turn(number) if type(write) is Put]
    assert await store.bodies([each.id for each in later]) == [each.payload for each in later]
    await store.close()
    assert (tmp_path / "hub.bodies").stat().st_size > 64 * 2**10
    assert check_store(tmp_path) == []


@pytest.mark.asyncio
async def test_upgrade_of_the_second_format(tmp_path: Path) -> None:
    """A file of the second format, whose tasks come after no others, is whole once it is upgraded, and takes such tasks."""
    await marked_as_format(2, tmp_path, *WITHOUT_PARENTS, *WITHOUT_LARGE)
    assert upgrade_store(tmp_path) == 2
    store = open_store(tmp_path, reserve=SMALL)
    put = turn(1)[0]
    assert isinstance(put, Put)
    assert [write for write in await everything(store) if type(write) is Put] == [put]
    later = put._replace(id=put.id + (1 << 70), after=(put.id, 7 << 64))
    store.write([later], lambda: None)
    await store.close()
    store = open_store(tmp_path, reserve=SMALL)
    assert [write for write in await everything(store) if type(write) is Put] == [put, later]
    await store.close()


@pytest.mark.asyncio
async def test_upgrade_of_the_first_format(tmp_path: Path) -> None:
    """A file of the first format, which has no schedules, is refused until it is upgraded, and is whole then."""
    await marked_as_format(1, tmp_path, "DROP TABLE schedules", *WITHOUT_PARENTS, *WITHOUT_LARGE)
    with pytest.raises(StoreError, match="has format 1, this version has 4"):
        open_store(tmp_path)
    assert upgrade_store(tmp_path) == 1
    store = open_store(tmp_path, reserve=SMALL)
    assert [write for write in await everything(store) if type(write) is Put] == turn(1)[:1]
    store.write([Scheduled("daily", 1.0, ("q", b"", 0, (), 1.0, None))], lambda: None)
    await store.close()
    assert check_store(tmp_path) == []
