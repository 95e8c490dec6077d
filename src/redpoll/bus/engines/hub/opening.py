"""The store in a folder: opened, or checked and brought to the newest format while no hub uses it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from redpoll.bus.engines.hub.bodies import Bodies, File
from redpoll.bus.engines.hub.disk import DiskStore, check_database, connect, damaged
from redpoll.bus.engines.hub.folder import Folder
from redpoll.bus.engines.hub.store import new_name
from redpoll.bus.engines.hub.tables import SCHEMA, TURN, UPGRADES
from redpoll.bus.engines.hub.wal import find_damage
from redpoll.errors import StoreError

__all__ = ["FORMAT", "check_store", "open_store", "upgrade_store"]

FORMAT: Final = 1 + len(UPGRADES)
"""The version of the tables."""

_APPLICATION: Final = 0x72656470
# Bytes that are kept in memory too: enough for what is handed out soon after it was submitted.
_RECENT: Final = 8 * 2**20


def open_store(
    path: str | os.PathLike[str],
    *,
    key_time: float = 3_600.0,
    keys: int = 1_000_000,
    reserve: int = 32 * 2**20,
    recent: float = _RECENT,
    connect: Callable[[str], Any] = connect,
    open_bodies: Callable[[str], File] = File,
) -> DiskStore:
    """Open the store in a folder, which is made if it is not there.

    Args:
        path: The folder.
        key_time: Seconds that a dedup key counts.
        keys: Dedup keys of a queue at most.
        reserve: Bytes that are set aside for when the disk is full.
        recent: See `redpoll.bus.engines.hub.store.Store`.
        connect: Makes the connection; for tests.
        open_bodies: Opens the file of large bodies; for tests.

    Raises:
        StoreError: Another hub uses the folder, it cannot be written, it is on a network file system, or the file in it is
            damaged, of a newer format, or not a hub's.
    """
    folder = Folder(path, reserve)
    database = file = None
    try:
        _refuse_damage(folder)
        _sync_log(folder)
        database = connect(folder.database)
        file = open_bodies(folder.bodies)
        bodies = Bodies(file, database)
        _prepare(folder, database, bodies)
        store = DiskStore(folder, database, bodies, key_time, keys, recent)
    except BaseException as error:
        for each in (database, file):
            if each is not None:
                each.close()
        folder.close()
        if isinstance(error, ValueError):
            raise damaged(folder, error) from error
        if not isinstance(error, sqlite3.Error):
            raise
        if error.sqlite_errorcode in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}:
            raise damaged(folder, error) from error
        raise folder.error(f"hub.db cannot be used: {error}") from error
    folder.kept += [database, file]
    folder.remember()
    return store


def _prepare(folder: Folder, database: Any, bodies: Bodies) -> None:
    """Set a connection up, make the tables where there are none, and raise the epoch."""

    def ask(question: str) -> Any:
        return next(iter(database.execute(f"PRAGMA {question}")))[0]

    ask("locking_mode = EXCLUSIVE")
    found = _format_of(folder, database)
    if 0 < found < FORMAT:
        raise folder.error(
            f"hub.db has format {found}, this version has {FORMAT}", "redpoll hub upgrade makes it newer"
        )
    for setting in (
        "journal_mode = WAL",
        "synchronous = FULL",
        # Debian's SQLite writes zeros over each body that is deleted, so that a full disk is not emptied by ending tasks.
        "secure_delete = OFF",
        "wal_autocheckpoint = 0",
        "temp_store = MEMORY",
        "cache_size = -8192",
    ):
        tuple(database.execute(f"PRAGMA {setting}"))
    if found:
        # First, as bodies that were placed when the disk became full may have left no room for a commit.
        bodies.look()
    database.execute("BEGIN EXCLUSIVE")
    if found == 0:
        for statement in SCHEMA:
            database.execute(statement)
        database.execute(f"PRAGMA application_id = {_APPLICATION}")
        database.execute(f"PRAGMA user_version = {FORMAT}")
        database.execute("INSERT INTO state VALUES (?, 0, 0, 0)", (new_name(),))
    database.execute("UPDATE state SET epoch = epoch + 1")
    database.execute("COMMIT")
    if found == 0:
        bodies.look()
    for statement in TURN:
        database.execute(statement)
    folder.sync()


def _sync_log(folder: Folder) -> None:
    """Put on disk what a killed hub wrote to the log: the room of what it let go may be given away from now on."""
    with suppress(FileNotFoundError):
        log = File(f"{folder.database}-wal")
        try:
            log.sync()
        finally:
            log.close()


def check_store(path: str | os.PathLike[str]) -> list[str]:
    """Look whether the file in a folder that no hub uses is whole.

    Returns:
        What is wrong with it, a line each; none if it is whole.

    Raises:
        StoreError: There is none, a hub uses it, it cannot be opened, it is of a newer format, or it is not a hub's.
    """
    if not Path(path, "hub.db").exists():
        raise StoreError(str(path), "there is no hub.db")
    folder = Folder(path, 0)
    try:
        problem = _damage_of_log(folder)
        if problem is not None:
            return [problem]
        database, bodies = connect(folder.database), File(folder.bodies)
        try:
            return check_database(database, Bodies(bodies, database)) if _format_of(folder, database) else []
        finally:
            database.close()
            bodies.close()
    except sqlite3.DatabaseError as error:
        return [str(error)]
    finally:
        folder.close()


def upgrade_store(path: str | os.PathLike[str]) -> int:
    """Bring the file in a folder that no hub uses to the newest format, all of it or nothing.

    Returns:
        The format that it had; the newest if there is nothing in it, as where its first hub was killed at once.

    Raises:
        StoreError: There is none, a hub uses it, it is of a newer format, its tables are not those of its format, it is not a
            hub's, or it cannot be written.
    """
    if not Path(path, "hub.db").exists():
        raise StoreError(str(path), "there is no hub.db")
    folder = Folder(path, 0)
    try:
        _refuse_damage(folder)
        database = connect(folder.database)
        try:
            found = _format_of(folder, database)
            if not found:
                return FORMAT
            database.execute("BEGIN EXCLUSIVE")
            try:
                for number in range(found, FORMAT):
                    for statement in UPGRADES[number]:
                        database.execute(statement)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                    raise
                raise folder.error(
                    f"hub.db has format {found}, but not the tables of that format: {error}; nothing was changed",
                    "put a backup in its place",
                ) from error
            database.execute(f"PRAGMA user_version = {FORMAT}")
            database.execute("COMMIT")
        finally:
            database.close()
    except sqlite3.Error as error:
        raise damaged(folder, error) from error
    finally:
        folder.close()
    return int(found)


def _format_of(folder: Folder, database: Any) -> int:
    """Return the format of a file; 0 of one without any tables.

    Raises:
        StoreError: It is newer, or the file is not a hub's.
    """
    found, tables = (next(iter(database.execute(f"PRAGMA {each}")))[0] for each in ("user_version", "schema_version"))
    if found > FORMAT:
        raise folder.error(f"hub.db has format {found}, the newest known here is {FORMAT}", "use a newer redpoll")
    if found < 0:
        raise folder.error(f"hub.db is not a hub's: it has format {found}, those of a hub begin at 1")
    if not found and tables:
        raise folder.error("hub.db is not a hub's")
    return int(found)


def _refuse_damage(folder: Folder) -> None:
    """Raise `StoreError` if opening the file would drop what a damaged log holds."""
    problem = _damage_of_log(folder)
    if problem is not None:
        raise damaged(folder, problem)


def _damage_of_log(folder: Folder) -> str | None:
    try:
        return find_damage(folder.database)
    except OSError as error:
        raise folder.error(f"hub.db-wal cannot be read: {error.strerror}") from error
