"""Access to grpcio, the extra that this protocol needs."""

from __future__ import annotations

import asyncio
import gc
import os
from typing import Any

from redpoll.errors import UsageError

__all__ = ["KEPT", "load", "tasks_of"]

#: Objects of gRPC that have not ended. Dropping the last of them waits for it, for ever once its event loop has ended;
#: objects not closed by then stay here.
KEPT: set[object] = set()

#: Id of the process that uses gRPC.
_process: int | None = None


def load() -> Any:
    """Import gRPC, with `aio`.

    Raises:
        UsageError: grpcio is not installed, or was used by the process from which this one was forked: the two would share
            sockets.
    """
    global _process  # noqa: PLW0603  # gRPC's own state belongs to one process
    if _process not in {None, os.getpid()}:
        hint = "start processes with the method 'spawn', or fork before a node is made"
        raise UsageError("gRPC cannot be used by a process that was forked from one that uses it", hint)
    # gRPC's fork handlers make some children crash that are forked beside its threads; the user's own setting is kept.
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
    ids = set(map(id, owners))
    return [task for task in tasks if not owners or _refers(task, ids)]


def _refers(task: asyncio.Task[Any], ids: set[int]) -> bool:
    near = gc.get_referents(task.get_coro())
    return any(id(each) in ids for each in (*near, *gc.get_referents(*near)))
