"""Running a program on the faster of the installed event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["loop_factory", "run"]

ResultT = TypeVar("ResultT")


def run(main: Coroutine[Any, Any, ResultT], *, debug: bool | None = None) -> ResultT:
    """Run a coroutine to its end on a new event loop: uvloop's if it is installed, otherwise asyncio's.

    Args:
        main: The coroutine.
        debug: Whether the loop runs in debug mode; None leaves it to `PYTHONASYNCIODEBUG`.

    Returns:
        The result of `main`.

    Ctrl-C cancels `main`, as with `asyncio.run`.

    Raises:
        RuntimeError: An event loop is already running in this thread.
    """
    if asyncio._get_running_loop() is not None:
        main.close()
        raise RuntimeError("redpoll.run() cannot be called from a running event loop: await the coroutine instead")
    with asyncio.Runner(debug=debug, loop_factory=loop_factory()) as runner:
        return runner.run(main)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of the faster installed event loop; None for asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
