"""grpcio, the extra that this protocol needs."""

from __future__ import annotations

import asyncio
import gc
import os
from typing import Any

from redpoll.errors import UsageError

__all__ = ["KEPT", "load", "tasks_of"]

#: What gRPC has not finished. Whoever drops the last of gRPC's objects waits for that, which is for ever once its event loop
#: has ended; what was not closed by then stays here.
KEPT: set[object] = set()

#: The process that uses it.
_process: int | None = None


def load() -> Any:
    """Import it, with `aio`.

    Raises:
        UsageError: It is not installed, or a process before this one was forked used it: both would wait for one another's
            bytes.
    """
    global _process  # noqa: PLW0603  # gRPC's own state belongs to one process
    if _process not in {None, os.getpid()}:
        hint = "start processes with the method 'spawn', or fork before a node is made"
        raise UsageError("gRPC cannot be used by a process that was forked from one that uses it", hint)
    # What gRPC does to a child that is forked beside its threads makes some of them crash; a wish of the user's counts.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    try:
        import grpc
        import grpc.aio
    except ImportError as error:
        raise UsageError("the protocol gRPC needs grpcio", "pip install 'redpoll[grpc]'") from error
    _process = os.getpid()
    return grpc


def tasks_of(kinds: str | tuple[str, ...], *owners: object) -> list[asyncio.Task[Any]]:
    """Return the tasks of this loop that run methods of gRPC's classes.

    Args:
        kinds: The beginnings of the qualified names of the methods.
        owners: If given, only tasks whose coroutine refers to one of these, directly or by what it closes over.
    """
    tasks = [task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__qualname__", "").startswith(kinds)]
    return [task for task in tasks if not owners or _refers(task, owners)]


def _refers(task: asyncio.Task[Any], owners: tuple[object, ...]) -> bool:
    near = gc.get_referents(task.get_coro())
    return any(each is one for each in (*near, *gc.get_referents(*near)) for one in owners)
