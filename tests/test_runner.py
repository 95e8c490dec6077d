"""`redpoll.run` runs a program on the loop that is there."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest

import redpoll


async def kind_of_loop() -> str:
    """Return the package that the running loop comes from."""
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]


def test_uvloop_where_it_is_installed() -> None:
    """It takes uvloop's loop."""
    assert redpoll.run(kind_of_loop()) == "uvloop"


def test_asyncio_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without uvloop it takes asyncio's."""
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert redpoll.run(kind_of_loop()) == "asyncio"


def test_debug_is_passed_on() -> None:
    """`debug` reaches the loop."""

    async def is_debugging() -> bool:
        return asyncio.get_running_loop().get_debug()

    assert redpoll.run(is_debugging(), debug=True)
    assert not redpoll.run(is_debugging(), debug=False)


def test_errors_come_out() -> None:
    """What the program raises is raised."""

    async def fail() -> None:
        raise LookupError("on purpose")

    with pytest.raises(LookupError, match="on purpose"):
        redpoll.run(fail())


@pytest.mark.parametrize("uvloop", [True, False])
def test_interrupt_cancels_the_program(monkeypatch: pytest.MonkeyPatch, *, uvloop: bool) -> None:
    """Ctrl-C cancels the program, which may clean up, and then comes out as KeyboardInterrupt."""
    if not uvloop:
        monkeypatch.setitem(sys.modules, "uvloop", None)
    cleaned_up = []

    async def interrupted() -> None:
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned_up.append(True)

    # A shell starts what runs in the background with interrupts ignored, and so perhaps this very process.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            redpoll.run(interrupted())
    finally:
        signal.signal(signal.SIGINT, before)
    assert cleaned_up


@pytest.mark.asyncio
async def test_not_inside_a_loop() -> None:
    """In a running loop it refuses to start another, says what to do, and leaves nothing behind."""
    with pytest.raises(RuntimeError, match="from a running event loop: await the coroutine instead"):
        redpoll.run(kind_of_loop())
