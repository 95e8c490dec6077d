"""A store in a folder: SQLite, a file of large bodies, and a thread that writes.

What is queued while a transaction gets to the disk is the next one: the more there is to do, the larger they are.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from secrets import token_hex
from typing import Any, Final, TypeAlias

from redpoll.bus.broker.outputs import Ended, Put, Write
from redpoll.bus.broker.restore import Stored
from redpoll.bus.engines.hub.bodies import Bodies, references
from redpoll.bus.engines.hub.folder import Folder
from redpoll.bus.engines.hub.group import Group, Statement
from redpoll.bus.engines.hub.reading import load, load_tasks, read_bodies, read_outcome
from redpoll.bus.engines.hub.tables import Clock
from redpoll.errors import StoreError

__all__ = ["DiskStore", "check_database", "connect", "damaged"]

_log = logging.getLogger("redpoll.bus")

_LARGEST: Final = 16 * 2**20
# Bytes, about, after which the log is copied to the database: few at a time, as commits wait meanwhile.
_CHECKPOINT: Final = 4 * 2**20
# Bytes of a task, or an outcome, beside its body. On disk it takes no more than twice all, in the log and the tables.
_ROW: Final = 1_024
_BODIES: Final = (Put, Ended)
# Seconds that writes for which nobody waits may wait for others.
_PATIENCE = 0.005
# Seconds after which a disk that was full is looked at again.
_WAIT = 1.0

_FILL: Final = "UPDATE {0} SET body = ? WHERE rowid = ?"
# Pages of a backup between two commits.
_BACKUP: Final = 256
# The epoch of a backup is so much higher: a hub that continues from it is newer than the one that it was made of.
_EPOCHS: Final = 1_000

# Tasks whose bodies are read in one step.
_READ: Final = 64

_Found: TypeAlias = Callable[[list[bytes | StoreError]], object]
_Writes: TypeAlias = tuple[list[Write], Callable[[], object], Sequence[int], _Found | None, int, bool]
_Item: TypeAlias = _Writes | Callable[[], object] | None


def connect(path: str) -> Any:
    """Connect to a file, without transactions that nobody asked for."""
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)


class DiskStore:
    """See `redpoll.bus.engines.hub.store.Store`; made by `redpoll.bus.engines.hub.opening.open_store`.

    Attributes:
        full: Whether the disk is full: what is written still gets there, but the hub takes no new tasks.
    """

    def __init__(
        self, folder: Folder, database: Any, bodies: Bodies, key_time: float, keys: int, recent: float
    ) -> None:
        self.recent = recent
        self._folder = folder
        self._database = database
        self._bodies = bodies
        name, epoch, serial, clock = next(iter(database.execute("SELECT * FROM state")))
        self.name: str = name
        self.epoch: int = epoch
        self.serial: int = serial
        self._loop: asyncio.AbstractEventLoop | None = None
        self.full = True
        self._look()
        self.failed: Callable[[BaseException], object] | None = None
        self._clock = Clock(time.monotonic(), time.time(), clock)
        self._group = Group(self._clock, database, bodies, key_time, keys)
        self._items: SimpleQueue[_Item] = SimpleQueue()
        #: Bytes of new tasks and of outcomes that are not on disk yet; the loop's.
        self._waiting = 0
        self._written = 0
        self._last = False
        #: Error of a commit that was made while a job ran: it ends the store, not the job alone.
        self._broken: BaseException | None = None
        self._closed: asyncio.Future[None] | None = None
        self._over = False
        self._refusals: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._run, name=f"redpoll hub {folder.path}", daemon=True)

    def load(self) -> Iterator[Write]:
        """See `Store.load`.

        Raises:
            StoreError: The file is damaged.
        """
        with self._whole():
            yield from load(self._database, self._clock)

    def load_tasks(self) -> Iterator[Stored]:
        """See `Store.load_tasks`.

        Raises:
            StoreError: The file is damaged.
        """
        with self._whole():
            yield from load_tasks(self._database, self._clock)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.DatabaseError, ValueError, TypeError, KeyError) as error:
            raise damaged(self._folder, error) from error

    def has_room(self, size: int) -> bool:
        """See `Store.has_room`."""
        return not self.full and self._folder.has_room(2 * (self._waiting + size + _ROW), self._reserved)

    def write(
        self,
        writes: list[Write],
        done: Callable[[], object],
        wanted: Sequence[int] = (),
        found: _Found | None = None,
        *,
        soon: bool = True,
    ) -> None:
        """See `Store.write`."""
        if self._loop is None:
            self._start()
        size = sum([_ROW + len(each.payload or b"") for each in writes if isinstance(each, _BODIES)])
        self._waiting += size
        self._items.put((writes, done, wanted, found, size, soon))

    async def bodies(self, tasks: Sequence[int]) -> list[bytes | StoreError | None]:
        """See `Store.bodies`."""
        parts = [tasks[start : start + _READ] for start in range(0, len(tasks), _READ)]
        return [body for part in parts for body in await self._ask(partial(self._read, part))]

    async def outcome(self, task: int) -> Ended | StoreError | None:
        """See `Store.outcome`."""

        def read() -> Ended | StoreError | None:
            try:
                with self._whole():
                    return read_outcome(self._database, self._bodies, self._clock, task)
            except StoreError as error:
                return error

        return await self._ask(read)  # type: ignore[no-any-return]

    def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def close(self) -> None:
        """See `Store.close`."""
        if self._over:
            return
        if self._closed is None:
            self._closed = asyncio.get_running_loop().create_future()
            if self._loop is None:
                self._start()
            self._items.put(None)
        await asyncio.shield(self._closed)

    async def check(self) -> list[str]:
        """Look whether the file is whole; commits wait meanwhile.

        Returns:
            What is wrong with it, a line each; none if it is whole.

        Raises:
            StoreError: It was closed.
        """
        return await self._ask(lambda: check_database(self._database, self._bodies))  # type: ignore[no-any-return]

    async def backup(self, target: str | os.PathLike[str]) -> None:
        """Copy the store, as it is at one moment, to a new file; commits continue meanwhile.

        A relative path is below the folder of the store. The file takes the place of ``hub.db`` in a folder of its own. A hub
        that starts from it has a higher epoch than this one, which clients refuse from then on.

        Raises:
            StoreError: The file exists, it cannot be written, or the store was closed.
        """
        await self._ask(lambda: self._copy(Path(self._folder.path, target)))

    async def _ask(self, job: Callable[[], Any]) -> Any:
        """Let the thread do something between commits."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._start()
        future: asyncio.Future[Any] = loop.create_future()

        def answer(error: Exception | None, result: Any = None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def do() -> None:
            try:
                self._post(answer, None, job())
            except Exception as error:  # noqa: BLE001 - it is raised where it was asked
                self._post(answer, error)

        def refuse() -> None:
            answer(self._folder.error("was closed"))

        if self._over:
            refuse()
        self._refusals.append(refuse)
        self._items.put(do)
        try:
            return await future
        finally:
            self._refusals.remove(refuse)

    # -- the thread

    def _run(self) -> None:
        try:
            while not self._last:
                self._turn()
        except BaseException as error:  # noqa: BLE001 - the hub is told, and ends
            self._post(self._fail, error)
        self._database.close()
        self._bodies.close()
        self._folder.close()
        self._post(self._end)

    def _turn(self) -> None:
        """Commit what is queued."""
        items = self._items
        try:
            item = items.get(timeout=None if self._reserved else _WAIT)
        except Empty:
            self._make_room()
            self._look()
            return
        calls: list[Callable[[], object]] = []
        job = None
        size = 0
        patient, end = True, time.monotonic() + _PATIENCE
        while item is not None:
            if callable(item):
                job = item
                break
            writes, done, wanted, found, more, soon = item
            size += more
            self._group.add(writes)
            calls.append(done)
            if found is not None:
                # Before the commit: what is ended meanwhile is there still.
                self._post(found, self._find(wanted))
            if self._group.bytes > _LARGEST:
                break
            patient = patient and not soon
            try:
                item = items.get(timeout=max(0.0, end - time.monotonic()) if patient else 0.0)
            except Empty:
                break
        if calls:
            self._commit(self._group.take(time.monotonic()))
            if not self._reserved and not self.full:
                self._look()
            self._post(self._synced, calls, size)
            self._bodies.written()
            self._checkpoint()
        if job is not None:
            job()
            if self._broken is not None:
                raise self._broken
        self._last = self._last or item is None

    def _make_room(self) -> None:
        """Let the file of large bodies end earlier."""
        try:
            self._bodies.move()
        except Exception as error:
            if not _is_full(error):
                raise
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")

    def _look(self) -> None:
        """See whether the disk is full: neither with a reserve nor while the file, of ended tasks, has as much room."""
        was_full = self.full and self._loop is not None
        self._reserved = self._folder.make_reserve()
        free, size = (
            next(iter(self._database.execute(f"PRAGMA {each}")))[0] for each in ("freelist_count", "page_size")
        )
        self.full = not self._reserved and not self._folder.does_without_reserve(free * size, self.full)
        if self.full and not was_full:
            self._log_full()
        # Without a reserve, what the tables have room for is known.
        self._bodies.growing = self._reserved

    def _log_full(self) -> None:
        _log.warning("%s: the disk is full, so new tasks are refused until it has room again", self._folder.path)

    def _read(self, tasks: Sequence[int]) -> list[bytes | StoreError | None]:
        with self._whole():
            read = read_bodies(self._database, self._bodies, [self._group.source(each) for each in tasks])
        return [damaged(self._folder, each) if isinstance(each, ValueError) else each for each in read]

    def _find(self, tasks: Sequence[int]) -> list[bytes | StoreError]:
        """Read bodies that are certainly there."""
        read = [body for start in range(0, len(tasks), _READ) for body in self._read(tasks[start : start + _READ])]
        found = [each for each in read if each is not None]
        if len(found) < len(tasks):
            raise damaged(self._folder, LookupError("a task has no body"))
        return found

    def _post(self, call: Callable[..., object], *arguments: Any) -> None:
        # Once the loop is closed there is nobody left to tell.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *arguments)  # type: ignore[union-attr]

    def _commit(self, statements: list[Statement]) -> None:
        try:
            self._carry_out(statements)
        except Exception as error:
            if not _is_full(error) or not self._folder.use_reserve():
                raise
            self.full = True
            self._log_full()
            # Bodies of tasks that were taken by now still go to their file: the log and the tables would need room for two.
            self._reserved = False
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            self._carry_out(statements)
        self._folder.check()

    def _carry_out(self, statements: list[Statement]) -> None:
        execute = self._database.execute
        self._bodies.write()
        if len(statements) > 1:
            execute("BEGIN")
        for sql, values in statements:
            execute(sql, values)
            self._written += 1_024 + sum(len(value) for value in values if type(value) is bytes)
        if len(statements) > 1:
            execute("COMMIT")
        self._written += 16_384 + len(statements[-1][1][2])

    def _checkpoint(self) -> None:
        if self._written > _CHECKPOINT:
            self._written = 0
            try:
                tuple(self._database.execute("PRAGMA wal_checkpoint(PASSIVE)"))
            except Exception as error:
                # Everything is in the log still.
                if not _is_full(error):
                    raise

    # -- on the loop again

    def _synced(self, calls: list[Callable[[], object]], size: int) -> None:
        self._waiting -= size
        for call in calls:
            call()

    def _fail(self, error: BaseException) -> None:
        if self.failed is not None:
            known = isinstance(error, StoreError)
            self.failed(error if known else self._folder.error(f"cannot be written: {error}"))

    def _copy(self, target: Path) -> None:
        if "\0" in str(target):
            raise self._folder.error(f"backup to {str(target)!r}: a name has no NUL")
        # A name of its own: a file that is there stays as it is.
        part = target.with_name(f"{target.name}.{token_hex(8)}.part")

        def go_on(*_: int) -> None:
            # Once: with commits that never end the backup would not either.
            if not self._last and not self._items.empty():
                try:
                    self._turn()
                except BaseException as error:
                    self._broken = error
                    raise
            if self._last:
                raise self._folder.error("was closed before the backup was done")

        try:
            _refuse_existing(target)
            os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            copy = connect(str(part))
            self._bodies.pinned += 1
            try:
                self._database.backup(copy, pages=_BACKUP, progress=go_on)
                copy.execute("PRAGMA journal_mode = DELETE").fetchall()
                copy.execute("BEGIN")
                copy.execute("UPDATE state SET epoch = epoch + ?", (_EPOCHS,))
                for table, row, reference in references(copy):
                    copy.execute(_FILL.format(table), (self._bodies.read(reference), row))
                    go_on()
                copy.execute("COMMIT")
            finally:
                self._bodies.pinned -= 1
                copy.close()
            # Another backup may have made it meanwhile.
            _refuse_existing(target)
            part.rename(target)
        except (OSError, ValueError, sqlite3.Error) as error:
            raise self._folder.error(f"backup to {target}: {getattr(error, 'strerror', None) or error}") from error
        finally:
            part.unlink(missing_ok=True)

    def _end(self) -> None:
        self._over = True
        for refuse in self._refusals:
            refuse()
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)


def _refuse_existing(target: Path) -> None:
    if os.path.lexists(target):
        raise FileExistsError(17, "File exists")


_RULES: Final = {
    "is of no queue": "SELECT serial FROM tasks WHERE queue NOT IN (SELECT number FROM queues)",
    "has no body": "SELECT serial FROM tasks WHERE body IS NULL AND serial NOT IN (SELECT serial FROM bodies)",
}


def check_database(database: Any, bodies: Bodies) -> list[str]:
    """Return what is wrong with a database and its large bodies, a line each; none if they are whole."""
    found = [str(line) for (line,) in database.execute("PRAGMA integrity_check")]
    if found == ["ok"]:
        found = [f"task {serial} {what}" for what, rule in _RULES.items() for (serial,) in database.execute(rule)]
        for table, row, reference in references(database):
            try:
                bodies.read(reference)
            except ValueError as error:
                found.append(f"row {row} of {table}: {error}")
    return found


def _is_full(error: Exception) -> bool:
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL or (
        isinstance(error, OSError) and error.errno == errno.ENOSPC
    )


def damaged(folder: Folder, error: BaseException | str) -> StoreError:
    """Return the error of a database that is damaged."""
    return folder.error(f"hub.db is damaged: {error}", "put a backup in its place")
