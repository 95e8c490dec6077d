"""Locks that threads of a program and event loops take for moments, and the refusal to wait for a loop with one of them."""

from __future__ import annotations

import _thread
import threading
import weakref
from typing import Any, TypeVar

from redpoll.errors import UsageError

__all__ = ["check_not_held", "check_unlocked", "holds_lock", "new_lock", "noted"]

LockT = TypeVar("LockT")

#: Weak references to these locks. Changed and copied in single steps, which nothing can interrupt: other ways to copy a set
#: may collect garbage, and that removes references.
_locks: set[weakref.ref[Any]] = set()


def new_lock() -> _thread.RLock:
    """Return a lock that threads and a loop hold for moments. It is reentrant, for signal handlers and finalizers."""
    return noted(threading.RLock())


def noted(lock: LockT) -> LockT:
    """Count a lock of the type of `threading.RLock` among these locks, and return it."""
    _locks.add(weakref.ref(lock, _locks.discard))
    return lock


def holds_lock() -> bool:
    """Return True if this thread holds one of these locks.

    It is in a signal handler or a finalizer then, and must not wait for a loop, which may wait for the lock.
    """
    for each in _locks.copy():
        lock = each()
        if lock is not None and lock._is_owned():
            return True
    return False


def check_unlocked() -> None:
    """Refuse to wait for a loop while this thread holds one of these locks.

    Raises:
        UsageError: It does.
    """
    if holds_lock():
        raise _interrupted("a call that the event loop may wait for")


def check_not_held(lock: _thread.RLock) -> None:
    """Refuse to begin again what this thread does with a lock that it holds for long, as while it waits for a loop.

    Raises:
        UsageError: It holds the lock: a signal handler or a finalizer interrupted it.
    """
    if lock._is_owned():  # type: ignore[attr-defined]
        raise _interrupted("a call whose end this waits for")


def _interrupted(call: str) -> UsageError:
    return UsageError(
        f"this might wait for ever: a signal handler or a finalizer interrupted {call}",
        "let it set an event that a thread waits for, or start a thread; send and stop do not wait there",
    )
