"""Running a program on the faster event loop that is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["loop_factory", "run"]

ResultT = TypeVar("ResultT")


def run(main: Coroutine[Any, Any, ResultT], *, debug: bool | None = None) -> ResultT:
    """Run a coroutine to its end on a new event loop: uvloop's where it is installed, else asyncio's.

    Args:
        main: What to run.
        debug: Whether the loop runs in debug mode; None leaves it to `PYTHONASYNCIODEBUG`.

    Returns:
        What `main` returned.

    Ctrl-C cancels `main`, as with `asyncio.run`.

    Raises:
        RuntimeError: An event loop is running in this thread already.
    """
    if asyncio._get_running_loop() is not None:
        main.close()
        raise RuntimeError("redpoll.run() cannot be called from a running event loop: await the coroutine instead")
    with asyncio.Runner(debug=debug, loop_factory=loop_factory()) as runner:
        return runner.run(main)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the faster event loop that is there; None is asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
