"""A store in a folder: what it said is there, and what it cannot do it says."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redpoll.bus import OutcomeKind, QueueSpec
from redpoll.bus.broker.outputs import Dead, Declared, Ended, Put, Write
from redpoll.bus.engines.hub import bodies, disk, folder, opening
from redpoll.bus.engines.hub.bodies import File
from redpoll.bus.engines.hub.disk import DiskStore, connect
from redpoll.bus.engines.hub.opening import FORMAT, check_store, open_store, upgrade_store
from redpoll.errors import StoreError
from tests.bus.engines.hub.support import everything
from tests.bus.patterns import until
from tests.cli.support import environment
from tests.source_tree import ROOT

SMALL = 65_536
Q = Declared(QueueSpec("q"), False)


class FullFile(File):
    """A file of large bodies on a disk that can be full.

    Attributes:
        full: True to refuse one write.
    """

    full = False

    def write(self, offset: int, data: Any) -> None:
        """Write, where there is room."""
        if self.full:
            self.full = False
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(offset, data)


def put(serial: int, payload: bytes = b"body") -> Put:
    """Make the write of a task."""
    return Put(serial << 64, "q", payload, len(payload), 9, 0, None, None, 0, (), 0)


def ended(serial: int) -> Ended:
    """Make the write of an outcome that is not kept."""
    return Ended(serial << 64, False, OutcomeKind.RESULT, None, 0, "", 0, 0.0)


def opened(path: Path, **options: Any) -> DiskStore:
    """Open a store with a small reserve."""
    return open_store(path, **{"reserve": SMALL, **options})


async def written(store: DiskStore, *turns: list[Write]) -> None:
    """Write turns, and wait until they are on disk."""
    done: list[int] = []
    last = asyncio.Event()
    for number, writes in enumerate(turns):
        store.write(writes, lambda number=number: done.append(number))  # type: ignore[misc]
    store.write([], last.set)
    assert not done
    await last.wait()
    assert done == list(range(len(turns)))


async def kept(path: Path) -> list[Write]:
    """Open a store, and return what is in it."""
    store = opened(path)
    try:
        return await everything(store)
    finally:
        await store.close()


@pytest.mark.asyncio
async def test_what_was_written_is_there(tmp_path: Path) -> None:
    """A store is as it was when it was closed: its name, its tasks, the highest serial, though its task is gone."""
    path = tmp_path / "new" / "hub"
    store = opened(path)
    assert (store.epoch, store.serial, list(store.load())) == (1, 0, [])
    await written(store, [Q, put(1)], [put(2)], [put(3)], [ended(2), ended(3)])
    await store.close()
    again = opened(path)
    assert (again.name, again.epoch, again.serial) == (store.name, 2, 3)
    assert await everything(again) == [Q, put(1)]
    await again.close()
    assert len(bytes.fromhex(store.name)) == 4
    assert {each.name for each in path.iterdir()} == {"hub.bodies", "hub.db", "hub.lock", "hub.reserve"}
    if sys.platform != "win32":
        assert {each.stat().st_mode & 0o077 for each in (path, *path.iterdir()) if each.name != "hub.reserve"} == {0}


@pytest.mark.asyncio
async def test_closing_writes_the_rest(tmp_path: Path) -> None:
    """What was queued is on disk once it is closed, and was said to be; a second close does no harm."""
    store = opened(tmp_path)
    done: list[int] = []
    store.write([Q], lambda: None)
    for number in range(1, 2_000):
        store.write([put(number, bytes(500))], lambda number=number: done.append(number))  # type: ignore[misc]
    await asyncio.gather(store.close(), store.close())
    await store.close()
    assert done == list(range(1, 2_000))
    assert len(await kept(tmp_path)) == 2_000


@pytest.mark.asyncio
async def test_what_waits_is_one_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is queued while a transaction gets to the disk is the next one."""
    go, groups = threading.Event(), []
    commit = DiskStore._commit

    def slow(self: DiskStore, statements: list[Any]) -> None:
        groups.append((statements[-1][1][3] or "").count("["))
        go.wait(30)
        commit(self, statements)

    monkeypatch.setattr(DiskStore, "_commit", slow)
    store = opened(tmp_path)
    store.write([Q], lambda: None)
    await until(lambda: groups)
    last = asyncio.Event()
    for number in range(1, 1_001):
        store.write([put(number)], lambda: None)
    store.write([], last.set)
    go.set()
    await last.wait()
    assert groups == [0, 1_001]
    await store.close()


@pytest.mark.asyncio
async def test_what_nobody_waits_for_goes_with_the_next_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for a turn for which somebody does, a look at the store, or its end; alone it is written a moment later."""
    groups: list[int] = []
    commit = DiskStore._commit

    def counted(self: DiskStore, statements: list[Any]) -> None:
        groups.append((statements[-1][1][3] or "").count("["))
        commit(self, statements)

    monkeypatch.setattr(DiskStore, "_commit", counted)
    store = opened(tmp_path)
    await written(store, [Q])
    groups.clear()
    alone = asyncio.Event()
    store.write([put(1)], alone.set, soon=False)
    await alone.wait()
    assert groups == [2]
    monkeypatch.setattr("redpoll.bus.engines.hub.disk._PATIENCE", 600.0)
    done: list[int] = []
    last = asyncio.Event()
    store.write([put(2)], lambda: done.append(2), soon=False)
    await until(store._items.empty)
    store.write([put(3)], lambda: done.append(3), soon=False)
    await until(store._items.empty)
    assert (groups, done) == ([2], [])
    store.write([put(4)], last.set)
    await last.wait()
    assert (groups, done) == ([2, 4], [2, 3])
    store.write([put(5)], lambda: done.append(5), soon=False)
    assert await store.bodies([5 << 64]) == [b"body"]
    store.write([put(6)], lambda: done.append(6), soon=False)
    await store.close()
    assert (groups, done) == ([2, 4, 2, 2], [2, 3, 5, 6])


@pytest.mark.asyncio
async def test_a_turn_that_cannot_be_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that fails is the end of the store: nothing is confirmed from then on."""
    failed: list[BaseException] = []
    done: list[int] = []
    store = opened(tmp_path)
    store.failed = failed.append
    await written(store, [Q])

    def broken(_: DiskStore, __: list[Any]) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(DiskStore, "_carry_out", broken)
    store.write([put(1)], lambda: done.append(1))
    await asyncio.sleep(0)
    store.write([put(2)], lambda: done.append(2))
    await until(lambda: failed)
    assert "cannot be written: [Errno 5] Input/output error" in str(failed[0])
    await store.close()
    assert not done
    assert await kept(tmp_path) == [Q]


@pytest.mark.asyncio
async def test_the_log_stays_short(tmp_path: Path) -> None:
    """What is in the log gets to the database while it runs, in small parts."""
    store = opened(tmp_path)
    await written(store, [Q])
    for first in range(1, 30_001, 500):
        await written(store, [put(each, bytes(1_024)) for each in range(first, first + 500)])
    assert (tmp_path / "hub.db-wal").stat().st_size < 8 * 2**20
    await store.close()


@pytest.mark.asyncio
async def test_the_log_stays_short_with_large_bodies(tmp_path: Path) -> None:
    """Bodies count for the length of the log, and deleting them writes no zeros over them, however SQLite was built."""
    log = tmp_path / "hub.db-wal"
    store = opened(tmp_path)
    await written(store, [Q])
    for first in range(1, 241, 20):
        await written(store, [put(each, bytes(100_000)) for each in range(first, first + 20)])
        assert log.stat().st_size < 10 * 2**20
    await store.close()
    store = opened(tmp_path)
    await written(store, [ended(each) for each in range(1, 241)])
    assert log.stat().st_size < 2**20
    await store.close()


@pytest.mark.asyncio
async def test_one_hub_at_a_time(tmp_path: Path) -> None:
    """A second store on a folder is refused, in this process and in others, and names who has it."""
    store = opened(tmp_path)
    code = "import sys; from redpoll.bus.engines.hub.opening import open_store; open_store(sys.argv[1])"
    with pytest.raises(StoreError, match=f"is used by another hub, process {os.getpid()} .stop that one first"):
        opened(tmp_path)
    command = [sys.executable, "-c", code, str(tmp_path)]
    run = await asyncio.to_thread(subprocess.run, command, env=environment(), cwd=ROOT, capture_output=True)
    assert f"is used by another hub, process {os.getpid()}".encode() in run.stderr
    await written(store, [Q])
    await store.close()
    assert await kept(tmp_path) == [Q]


@pytest.mark.asyncio
async def test_others_cannot_write(tmp_path: Path) -> None:
    """A program that opens the database beside the hub can neither read nor write it."""
    store = opened(tmp_path)
    other = connect(str(tmp_path / "hub.db"))
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("DELETE FROM tasks")
    other.close()
    await written(store, [Q])
    await store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
@pytest.mark.asyncio
async def test_a_child_does_not_keep_the_folder(tmp_path: Path) -> None:
    """A forked child of a hub that lives on does not hold the lock, and does not touch the files as it ends."""
    store = opened(tmp_path)
    await written(store, [Q])
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # It forks a process that has threads, on purpose.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        os.close(writer)
        del store
        os.read(reader, 1)
        os._exit(0)
    try:
        await written(store, [put(1)])
        await store.close()
        assert await kept(tmp_path) == [Q, put(1)]
    finally:
        os.close(writer)
        os.close(reader)
        await asyncio.to_thread(os.waitpid, child, 0)


def damage(path: Path, where: int, what: bytes) -> None:
    """Write into the database."""
    with (path / "hub.db").open("r+b") as file:
        file.seek(where)
        file.write(what)


@pytest.mark.asyncio
async def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    """What is no database, or one with bad pages, is named as damaged, and with what to do."""
    store = opened(tmp_path)
    await written(store, [Q], [put(each, bytes(500)) for each in range(1, 200)])
    await store.close()
    whole = (tmp_path / "hub.db").read_bytes()
    damage(tmp_path, 0, bytes(100))
    with pytest.raises(StoreError, match=r"hub.db is damaged: file is not a database \(put a backup in its place\)"):
        opened(tmp_path)
    (tmp_path / "hub.db").write_bytes(whole)
    pages = len(whole) // 4_096
    damage(tmp_path, (pages - 20) * 4_096, b"\xff" * 4_096 * 19)
    store = opened(tmp_path)
    with pytest.raises(StoreError, match=r"hub.db is damaged"):
        list(store.load_tasks())
    await store.close()


@pytest.mark.asyncio
async def test_damaged_bodies_are_found(tmp_path: Path) -> None:
    """Bodies are not read at the start; a damaged one ends the store when it is wanted, and is an error when looked at."""
    store = opened(tmp_path)
    await written(store, [Q], [put(each, bytes(1_000)) for each in range(1, 100)])
    await store.close()
    pages = (tmp_path / "hub.db").stat().st_size // 4_096
    damage(tmp_path, (pages - 10) * 4_096, b"\xff" * 4_096 * 9)
    store = opened(tmp_path)
    failures: list[BaseException] = []
    store.failed = failures.append
    assert len(list(store.load_tasks())) == 99
    with pytest.raises(StoreError, match=r"hub.db is damaged"):
        await store.bodies([each << 64 for each in range(1, 100)])
    store.write([], lambda: None, [each << 64 for each in range(1, 100)], lambda found: None)
    await until(lambda: bool(failures))
    assert "hub.db is damaged" in str(failures[0])
    await store.close()


@pytest.mark.asyncio
async def test_large_bodies_are_written_once(tmp_path: Path) -> None:
    """Neither the log nor the tables have large bodies of tasks, outcomes and dead letters; they are read as they were."""
    store = opened(tmp_path)
    body = os.urandom(300_000)
    outcome = ended(2)._replace(keep=True, payload=body[1:], size=len(body))
    await written(store, [Q, put(1, body), put(2)], [outcome])
    await written(store, [ended(1), Dead(1 << 64, "q", None, 9, ())])
    found = await store.outcome(2 << 64)
    assert isinstance(found, Ended)
    assert found.payload == body[1:]
    assert await store.bodies([1 << 64]) == [body]
    assert sum(each.stat().st_size for each in tmp_path.glob("hub.db*")) < len(body)
    assert 2 * len(body) <= (tmp_path / "hub.bodies").stat().st_size < 2.1 * len(body)
    await store.close()


@pytest.mark.asyncio
async def test_the_room_of_large_bodies_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is about as long as what is there at a time, however much there was; it is cut when the store opens."""
    monkeypatch.setattr(bodies, "_FRESH", 2**20)
    store = opened(tmp_path)
    await written(store, [Q])
    longest = 0
    for serial in range(1, 500):
        size = 66_000 + 977 * serial % 100_000
        ends = [ended(serial - 10)] if serial > 10 else []
        await written(store, [put(serial, serial.to_bytes(2, "big") * (size // 2)), *ends])
        longest = max(longest, (tmp_path / "hub.bodies").stat().st_size)
    assert longest < 4 * 2**20
    numbers = range(490, 500)
    found = await store.bodies([each << 64 for each in numbers])
    assert [int.from_bytes(each[:2], "big") for each in found if isinstance(each, bytes)] == list(numbers)
    await written(store, [ended(each) for each in numbers])
    await store.close()
    await opened(tmp_path).close()
    assert (tmp_path / "hub.bodies").stat().st_size == 0


@pytest.mark.asyncio
async def test_room_behind_many_that_are_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies that none of many rooms at the front of the file can hold use the room of each other again."""
    monkeypatch.setattr(bodies, "_FRESH", 2**20)
    store = opened(tmp_path)
    await written(store, [Q, *(put(serial, bytes(SMALL)) for serial in range(1, 200))])
    await written(store, [ended(serial) for serial in range(2, 200, 2)])
    size = (tmp_path / "hub.bodies").stat().st_size
    for serial in range(200, 400):
        await written(store, [put(serial, bytes(2 * SMALL)), *([ended(serial - 2)] if serial > 201 else [])])
    # A quarter of what is there is placed until room is looked for.
    assert (tmp_path / "hub.bodies").stat().st_size < 1.5 * size
    await store.close()


@pytest.mark.asyncio
async def test_damaged_large_bodies_are_found(tmp_path: Path) -> None:
    """A large body that is not as it was written is an error when it is read, and when the file is checked."""
    store = opened(tmp_path)
    await written(store, [Q], [put(1, bytes(100_000)), put(2, bytes(100_000))])
    await store.close()
    file = tmp_path / "hub.bodies"
    contents = file.read_bytes()
    file.write_bytes(contents[:-5] + b"x" + contents[-4:])
    assert check_store(tmp_path) == ["row 2 of bodies: what was written to hub.bodies at byte 102,400 is not there"]
    store = opened(tmp_path)
    assert await store.bodies([1 << 64]) == [bytes(100_000)]
    (found,) = await store.bodies([2 << 64])
    assert isinstance(found, StoreError)
    assert "hub.db is damaged: what was written to hub.bodies at byte 102,400 is not there" in str(found)
    await store.close()
    file.write_bytes(contents[:-5])
    assert check_store(tmp_path) == ["row 2 of bodies: what was written to hub.bodies at byte 102,400 is not there"]
    with pytest.raises(StoreError, match=r"hub\.db is damaged: hub\.bodies ends before byte 202,400"):
        opened(tmp_path)
    file.unlink()
    with pytest.raises(StoreError, match=r"hub\.db is damaged: hub\.bodies ends before byte 202,400"):
        opened(tmp_path)


@pytest.mark.asyncio
async def test_large_bodies_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading, checking and copying a large body that the disk does not give back is an error that names the file."""
    store = opened(tmp_path)
    await written(store, [Q], [put(1, bytes(100_000)), put(2, bytes(100_000))])
    with monkeypatch.context() as context:

        def read(*_: Any) -> bytes:
            raise OSError(5, "Input/output error")

        context.setattr(File, "read", read)
        problem = "hub.bodies cannot be read at byte 102,400: Input/output error"
        assert (await store.check())[1:] == [f"row 2 of bodies: {problem}"]
        assert f"hub.db is damaged: {problem}" in str(await store.bodies([2 << 64]))
        with pytest.raises(
            StoreError, match=r"backup to .*other\.db: hub\.bodies cannot be read at byte 0: Input/output"
        ):
            await store.backup("other.db")
        await store.close()
        assert check_store(tmp_path)[1:] == [f"row 2 of bodies: {problem}"]
    assert check_store(tmp_path) == []


@pytest.mark.parametrize("name", ["hub.bodies", "hub.db-wal", "hub.db"])
def test_files_that_cannot_be_opened(tmp_path: Path, name: str) -> None:
    """A folder in the place of a file of the store is an error that names it, for a hub, a check and an upgrade."""
    (tmp_path / "hub.db").touch()
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).mkdir()
    for look in (opened, check_store, upgrade_store):
        with pytest.raises(StoreError, match=rf"{name}( cannot be read)?: "):
            look(tmp_path)


@pytest.mark.asyncio
async def test_an_older_file_of_large_bodies_is_found(tmp_path: Path) -> None:
    """A body does not pass for a later one of its place and length, whose file was replaced by an older copy."""
    store = opened(tmp_path)
    await written(store, [Q], [put(1, b"1" * 100_000)])
    await store.close()
    older = (tmp_path / "hub.bodies").read_bytes()
    store = opened(tmp_path)
    await written(store, [ended(1)])
    await store.close()
    store = opened(tmp_path)
    await written(store, [put(2, b"2" * 100_000)])
    await store.close()
    assert check_store(tmp_path) == []
    (tmp_path / "hub.bodies").write_bytes(older)
    assert check_store(tmp_path) == ["row 2 of bodies: what was written to hub.bodies at byte 0 is not there"]
    store = opened(tmp_path)
    problem = "hub.db is damaged: what was written to hub.bodies at byte 0 is not there"
    assert problem in str(await store.bodies([2 << 64]))
    await store.close()


@pytest.mark.asyncio
async def test_bodies_are_read_before_the_commit(tmp_path: Path) -> None:
    """Bodies that a turn wants are those from before it, also of a task that it ends; a copy is read as its original."""
    store = opened(tmp_path)
    await written(store, [Q], [put(1), put(2, bytes(1_000))])
    found: list[bytes | StoreError] = []
    copy = put(3)._replace(payload=None, origin=2 << 64, size=1_000)
    store.write([ended(1), ended(2), copy], lambda: None, [1 << 64, 2 << 64, 3 << 64], found.extend)
    await written(store)
    assert found == [b"body", bytes(1_000), bytes(1_000)]
    assert await store.bodies([1 << 64, 2 << 64, 3 << 64]) == [None, None, bytes(1_000)]
    await store.close()


@pytest.mark.asyncio
async def test_a_damaged_log_is_refused(tmp_path: Path) -> None:
    """No damage to the log loses a confirmed task unseen, but at its end, where it looks like a power failure."""
    store = opened(tmp_path / "hub")
    await written(store, [Q])
    for each in range(1, 21):
        await written(store, [put(each, b"%d" % each * 3_000)])
    files = {name: (tmp_path / "hub" / name).read_bytes() for name in ("hub.db", "hub.db-wal")}
    await store.close()
    frames = len(files["hub.db-wal"]) // 4_120
    refused = 0
    places = [0, 17, 31, *(32 + number * 4_120 + 137 * number % 4_120 for number in range(0, frames, 7))]
    for place in places:
        copy = tmp_path / f"{place}"
        copy.mkdir()
        broken = bytearray(files["hub.db-wal"])
        broken[place] ^= 0x10
        (copy / "hub.db").write_bytes(files["hub.db"])
        (copy / "hub.db-wal").write_bytes(broken)
        problems = check_store(copy)
        if problems:
            refused += 1
            with pytest.raises(StoreError, match=r"hub.db is damaged: .* of its log is not whole"):
                opened(copy)
            assert (copy / "hub.db-wal").read_bytes() == broken
        else:
            found = [each.id >> 64 for each in await kept(copy) if type(each) is Put]
            assert found[:18] == list(range(1, 19))
    assert refused > len(places) * 0.8


@pytest.mark.asyncio
async def test_a_log_that_ends_early_is_read(tmp_path: Path) -> None:
    """What a power failure leaves at the end of the log is no damage; a log without its file is."""
    store = opened(tmp_path / "hub")
    await written(store, [Q], [put(1)])
    await written(store, [put(2, bytes(20_000))])
    database, log = ((tmp_path / "hub" / name).read_bytes() for name in ("hub.db", "hub.db-wal"))
    await store.close()
    ends = {
        "short": log[:-5_000],
        "empty": b"",
        "zeros": log + bytes(10_000),
        "hole": log[:-8_000] + bytes(2_000) + log[-6_000:],
    }
    for name, bytes_ in ends.items():
        copy = tmp_path / name
        copy.mkdir()
        (copy / "hub.db").write_bytes(database)
        (copy / "hub.db-wal").write_bytes(bytes_)
        found = await kept(copy)
        assert (put(1) in found) is (name != "empty")
    (tmp_path / "short" / "hub.db-wal").write_bytes(log)
    (tmp_path / "short" / "hub.db").unlink()
    with pytest.raises(
        StoreError, match=r"hub.db is damaged: it is empty, but has a log \(put a backup in its place\)"
    ):
        opened(tmp_path / "short")


@pytest.mark.asyncio
async def test_other_formats_are_refused(tmp_path: Path) -> None:
    """A file of a newer format, and one of another program, are refused by name and stay as they are."""
    store = opened(tmp_path)
    await store.close()
    database = connect(str(tmp_path / "hub.db"))
    database.execute(f"PRAGMA user_version = {FORMAT + 1}")
    database.close()
    newer = rf"hub.db has format {FORMAT + 1}, the newest known here is {FORMAT} \(use a newer redpoll\)"
    with pytest.raises(StoreError, match=newer):
        opened(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    database = connect(str(other / "hub.db"))
    database.execute("CREATE TABLE books (title TEXT)")
    database.close()
    with pytest.raises(StoreError, match=r"hub.db is not a hub's"):
        opened(other)


def test_folders_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in place of the folder, a folder that is only to be read, and one on a network are refused by name."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot be used: File exists \(the hub must be able to write there\)"):
        opened(tmp_path / "file")

    def refuse(*_: Any) -> int:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as context:
        context.setattr(os, "open", refuse)
        with pytest.raises(StoreError, match="cannot be used: Read-only file system"):
            opened(tmp_path)
    monkeypatch.setattr(folder, "mounted_over_network", lambda _: "nfs4")
    with pytest.raises(StoreError, match=r"is on a network file system \(nfs4\).*use a disk of this machine"):
        opened(tmp_path)


class Breaking:
    """A connection that fails at will.

    Args:
        database: The true one.
    """

    def __init__(self, database: Any) -> None:
        self.database = database
        self.failing: Callable[[], BaseException | None] = lambda: None

    def execute(self, sql: str, *values: Any) -> Any:
        """Fail in the midst of a transaction, or carry a statement out."""
        error = self.failing()
        if sql.startswith("INSERT INTO turn") and error is not None:
            raise error
        return self.database.execute(sql, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.database, name)


def error_of(code: int, text: str) -> sqlite3.OperationalError:
    """Make an error of SQLite."""
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


@pytest.mark.asyncio
async def test_a_failed_sync_ends_the_store(tmp_path: Path) -> None:
    """After a failure nothing is confirmed any more, the hub is told once, and what was confirmed is there."""
    breaking: list[Breaking] = []

    def break_(path: str) -> Breaking:
        breaking.append(Breaking(connect(path)))
        return breaking[0]

    store = opened(tmp_path, connect=break_)
    failures: list[BaseException] = []
    store.failed = failures.append
    await written(store, [Q, put(1)])
    breaking[0].failing = lambda: error_of(sqlite3.SQLITE_IOERR_FSYNC, "disk I/O error")
    done: list[int] = []
    for number in range(2, 9):
        store.write([put(number)], lambda number=number: done.append(number))  # type: ignore[misc]
    await store.close()
    store.write([put(9)], lambda: done.append(9))
    assert done == []
    (failure,) = failures
    assert isinstance(failure, StoreError)
    assert failure.problem == "cannot be written: disk I/O error"
    assert await kept(tmp_path) == [Q, put(1)]


@pytest.mark.asyncio
async def test_a_failed_store_can_be_closed(tmp_path: Path) -> None:
    """A store whose thread has ended after a failure closes at once, and closes again."""
    breaking: list[Breaking] = []

    def break_(path: str) -> Breaking:
        breaking.append(Breaking(connect(path)))
        return breaking[0]

    store = opened(tmp_path, connect=break_)
    failures: list[BaseException] = []
    store.failed = failures.append
    breaking[0].failing = lambda: error_of(sqlite3.SQLITE_IOERR_FSYNC, "disk I/O error")
    store.write([Q], lambda: None)
    await until(lambda: bool(failures) and store._over)
    for _ in range(2):
        await asyncio.wait_for(store.close(), 5)


@pytest.mark.parametrize("gone", ["hub.db", "hub.db-wal", "hub.bodies", ""])
@pytest.mark.asyncio
async def test_a_file_that_is_gone_ends_the_store(tmp_path: Path, gone: str) -> None:
    """Nothing is confirmed once a file of the store was removed, or its folder moved: the next hub would not find it."""
    path = tmp_path / "hub"
    store = opened(path)
    failures: list[BaseException] = []
    store.failed = failures.append
    await written(store, [Q])
    if gone:
        (path / gone).unlink()
    else:
        path.rename(tmp_path / "elsewhere")
    store.write([put(1)], lambda: failures.append(AssertionError("confirmed")))
    await store.close()
    assert [str(each) for each in failures] == [f"{path}: {gone or 'hub.db'} was removed or replaced while the hub ran"]


@pytest.mark.asyncio
async def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """On a full disk the reserve lets writes through, and the hub logs it; it is set aside again when there is room."""
    breaking: list[Breaking] = []

    def break_(path: str) -> Breaking:
        breaking.append(Breaking(connect(path)))
        return breaking[0]

    store = opened(tmp_path, connect=break_)
    reserve = tmp_path / "hub.reserve"
    assert reserve.stat().st_size == SMALL
    full = error_of(sqlite3.SQLITE_FULL, "database or disk is full")
    breaking[0].failing = lambda: full if reserve.exists() else None
    monkeypatch.setattr(disk, "_WAIT", 0.001)
    with monkeypatch.context() as context:
        context.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 0}))
        await written(store, [Q, put(1)])
        await written(store, [ended(1), put(2)])
        assert store.full
    await until(lambda: not store.full)
    assert [each.message for each in caplog.records if each.name == "redpoll.bus"] == [
        f"{tmp_path}: the disk is full, so new tasks are refused until it has room again"
    ]
    assert reserve.stat().st_size == SMALL
    await store.close()
    assert await kept(tmp_path) == [Q, put(2)]


@pytest.mark.asyncio
async def test_room_for_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store has room for new tasks while twice what waits for the disk fits on it, the reserve included."""
    go, commit, usage = threading.Event(), DiskStore._commit, {"free": 2**30}

    def slow(self: DiskStore, statements: list[Any]) -> None:
        assert go.wait(30)
        commit(self, statements)

    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), usage))
    store = opened(tmp_path)
    await written(store, [Q])
    monkeypatch.setattr(DiskStore, "_commit", slow)
    usage["free"] = 0
    assert store.has_room(SMALL // 2 - 1_024)
    assert not store.has_room(SMALL // 2)
    usage["free"] = SMALL
    assert store.has_room(SMALL - 1_024)
    last = asyncio.Event()
    store.write([put(1, bytes(SMALL // 2))], last.set)
    assert store.has_room(SMALL // 2 - 2_048)
    assert not store.has_room(SMALL // 2 - 1_024)
    go.set()
    await last.wait()
    assert store.has_room(SMALL - 1_024)
    await store.close()


@pytest.mark.asyncio
async def test_a_disk_that_the_tasks_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file never shrinks: when its tasks ended it has the room of a reserve in itself, until new ones took half of it."""
    breaking: list[Breaking] = []

    def break_(path: str) -> Breaking:
        breaking.append(Breaking(connect(path)))
        return breaking[0]

    monkeypatch.setattr(disk, "_WAIT", 0.001)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": SMALL}))
    (tmp_path / "hub.reserve").write_bytes(bytes(SMALL))
    store = opened(tmp_path, connect=break_)
    breaking[0].failing = lambda: error if (tmp_path / "hub.reserve").exists() else None
    error = error_of(sqlite3.SQLITE_FULL, "database or disk is full")
    body = bytes(SMALL // 4)
    await written(store, [Q], [put(serial, body) for serial in range(1, 7)])
    full = [store.full]
    await written(store, [ended(serial) for serial in range(1, 7)])
    await until(lambda: not store.full)
    assert not (tmp_path / "hub.reserve").exists()
    await written(store, [put(7, body)])
    full.append(store.full)
    await written(store, [put(serial, body) for serial in range(8, 12)])
    full.append(store.full)
    assert full == [True, False, True]
    await store.close()


@pytest.mark.asyncio
async def test_a_disk_that_large_bodies_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body for which a full disk has no room is stored by the reserve; the file gets shorter as tasks at its front end."""
    usage = {"free": 0}
    monkeypatch.setattr(disk, "_WAIT", 0.001)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), usage))
    (tmp_path / "hub.reserve").write_bytes(bytes(SMALL))
    files: list[FullFile] = []

    def open_bodies(path: str) -> FullFile:
        files.append(FullFile(path))
        return files[0]

    store = opened(tmp_path, open_bodies=open_bodies)
    payloads = {serial: serial.to_bytes(2, "big") * 50_000 for serial in range(1, 21)}
    await written(store, [Q], [put(serial, payloads[serial]) for serial in range(1, 20)])
    size = (tmp_path / "hub.bodies").stat().st_size
    files[0].full = True
    await written(store, [put(20, payloads[20])])
    assert store.full
    assert not (tmp_path / "hub.reserve").exists()
    await written(store, [ended(serial) for serial in range(1, 15)])
    await until(lambda: (tmp_path / "hub.bodies").stat().st_size < size / 2)
    assert await store.bodies([serial << 64 for serial in range(15, 21)]) == [payloads[each] for each in range(15, 21)]
    usage["free"] = 2**30
    await until(lambda: not store.full)
    assert (tmp_path / "hub.reserve").exists()
    await store.close()
    assert check_store(tmp_path) == []
    assert [each.payload for each in await kept(tmp_path) if isinstance(each, Put)] == list(payloads.values())[14:]


@pytest.mark.asyncio
async def test_a_damaged_body_is_not_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk a damaged body stays where it is until its task ends; others move, and the store continues."""
    monkeypatch.setattr(disk, "_WAIT", 0.001)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 0}))
    (tmp_path / "hub.reserve").write_bytes(bytes(SMALL))
    files: list[FullFile] = []

    def open_bodies(path: str) -> FullFile:
        files.append(FullFile(path))
        return files[0]

    store = opened(tmp_path, open_bodies=open_bodies)
    failures: list[BaseException] = []
    store.failed = failures.append
    payloads = {serial: serial.to_bytes(2, "big") * 50_000 for serial in range(1, 21)}
    await written(store, [Q], [put(serial, payloads[serial]) for serial in range(1, 20)])
    files[0].full = True
    await written(store, [put(20, payloads[20])])
    bodies = tmp_path / "hub.bodies"
    size = bodies.stat().st_size
    with bodies.open("r+b") as file:
        file.seek(size - 1)
        file.write(b"x")
    await written(store, [ended(serial) for serial in range(1, 15)])
    await until(lambda: failures or bodies.read_bytes()[:2] == payloads[19][:2])
    assert not failures
    assert bodies.stat().st_size == size
    *whole, broken = await store.bodies([serial << 64 for serial in range(15, 21)])
    assert whole == [payloads[serial] for serial in range(15, 20)]
    assert isinstance(broken, StoreError)
    await written(store, [ended(20)])
    await until(lambda: bodies.stat().st_size < size / 2)
    assert await store.bodies([15 << 64]) == [payloads[15]]
    await store.close()


@pytest.mark.asyncio
async def test_large_bodies_on_the_way_to_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies of tasks that were taken when the disk became full take the reserve once, not in the log and the tables."""
    monkeypatch.setattr(disk, "_WAIT", 60.0)
    monkeypatch.setattr(disk, "_LARGEST", 0)
    files: list[FullFile] = []

    def open_bodies(path: str) -> FullFile:
        files.append(FullFile(path))
        return files[0]

    store = opened(tmp_path, open_bodies=open_bodies)
    body = os.urandom(300_000)
    await written(store, [Q])
    files[0].full = True
    await written(store, [put(1, body)], [put(2, body)], [put(3, body)])
    assert store.full
    assert sum(each.stat().st_size for each in tmp_path.glob("hub.db*")) < len(body)
    assert await store.bodies([1 << 64, 2 << 64, 3 << 64]) == [body, body, body]
    await store.close()


@pytest.mark.asyncio
async def test_a_disk_that_bodies_of_no_commit_filled(tmp_path: Path) -> None:
    """A store opens on a disk that is full of bodies which no row refers to, as their commit found no room."""
    store = opened(tmp_path)
    body = bytes(100_000)
    await written(store, [Q], [put(1, body)])
    await store.close()
    file = tmp_path / "hub.bodies"
    file.write_bytes(file.read_bytes() + bytes(100_000))

    class Full(Breaking):
        def execute(self, sql: str, *values: Any) -> Any:
            if sql.startswith("UPDATE") and file.stat().st_size > len(body):
                raise error_of(sqlite3.SQLITE_FULL, "database or disk is full")
            return super().execute(sql, *values)

    store = opened(tmp_path, connect=lambda path: Full(connect(path)))
    assert await store.bodies([1 << 64]) == [body]
    await store.close()


@pytest.mark.asyncio
async def test_the_log_is_synced_before_bodies_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed hub wrote last is put on disk before the room of the bodies that it let go is given away."""
    store = opened(tmp_path / "killed")
    await written(store, [Q], [put(1, bytes(SMALL))], [ended(1)])
    shutil.copytree(tmp_path / "killed", tmp_path / "next", ignore=shutil.ignore_patterns("hub.lock"))
    await store.close()
    seen: list[str] = []

    class Seen(File):
        def __init__(self, path: str) -> None:
            super().__init__(path)
            self.name = Path(path).name

        def sync(self) -> None:
            seen.append(f"sync {self.name}")
            super().sync()

        def cut(self, size: int) -> int:
            seen.append(f"cut {self.name}")
            return super().cut(size)

    monkeypatch.setattr(opening, "File", Seen)
    store = opened(tmp_path / "next", open_bodies=Seen)
    assert seen[:2] == ["sync hub.db-wal", "cut hub.bodies"]
    await store.close()


@pytest.mark.asyncio
async def test_a_disk_that_is_full_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store opens on a full disk, to let what it has be worked off; without a reserve the next failure ends it."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 0}))
    breaking: list[Breaking] = []

    def break_(path: str) -> Breaking:
        breaking.append(Breaking(connect(path)))
        return breaking[0]

    store = opened(tmp_path, connect=break_)
    assert store.full
    await written(store, [Q])
    failures: list[BaseException] = []
    store.failed = failures.append
    breaking[0].failing = lambda: error_of(sqlite3.SQLITE_FULL, "database or disk is full")
    store.write([put(1)], lambda: None)
    await store.close()
    assert str(failures[0]).endswith("cannot be written: database or disk is full")
