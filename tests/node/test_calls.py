"""How many functions of redpoll one message calls at both ends: what an asyncio program pays for it, whatever the machine."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import redpoll
from redpoll import Address, Message, Received
from tests.node.support import make

_HOME = str(Path(redpoll.__file__).parent)
_MESSAGES = 256

#: Maximum calls per message: a task ends in its first step from Python 3.12 on, so handlers are coroutines there.
_BARS = {("send", 1): 47, ("send", 64): 22, ("request", 1): 57, ("request", 64): 33}


class _Counted:
    """Counts the calls of redpoll's functions."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_HOME):
            self.calls += 1


@pytest.mark.skipif(sys.version_info < (3, 12), reason="a handler's task takes a turn of the loop before Python 3.12")
@pytest.mark.parametrize(("word", "together"), _BARS)
def test_calls_for_a_message(word: str, together: int) -> None:
    """One message, acknowledged or answered, takes no more calls than the bar, both ends counted."""

    async def handle(_: Received[bytes]) -> bytes | None:
        return b"answer" if word == "request" else None

    async def count() -> float:
        async with make(handle) as server, make(listen=False) as client:
            address = Address.parse(str(server.address))
            call = getattr(client, word)
            for _ in range(10):
                await call(Message(b"hello", address))
            counted = _Counted()
            sys.setprofile(counted)
            try:
                for _ in range(_MESSAGES // together):
                    await asyncio.gather(*(call(Message(b"hello", address)) for _ in range(together)))
            finally:
                sys.setprofile(None)
            return counted.calls / _MESSAGES

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        assert runner.run(count()) <= _BARS[word, together]
