"""The board: what a wiring has, who may see it, and what it says of itself."""

from __future__ import annotations

import pytest

from redpoll import LOCAL, PROCESS, Wiring
from redpoll.errors import ProtocolError, UnknownName
from redpoll.wiring.connection import LocalConnection
from redpoll.wiring.names import GLOBAL
from tests.wiring.support import directory

pytestmark = pytest.mark.asyncio


class Far(LocalConnection):
    """As one to another process."""

    sees_process = sees_all = False


class Near(Far):
    """As one to another wiring of this process."""

    sees_process = True


async def test_visible() -> None:
    """Others see what its scope says, and what this wiring asked to have bound."""
    async with directory() as names, Wiring(names.address) as wiring:
        board = wiring._board
        for scope in (LOCAL, PROCESS, GLOBAL):
            await wiring.create_queue(scope.value, scope=scope)
            await wiring.create_exchange(scope.value, scope=scope)
        far, near = Far(board, b"far", b"1"), Near(board, b"near", b"2")
        seen = {
            (type(connection).__name__, name)
            for connection in (far, near, board.local)
            for name in ("local", "process", "global")
            if _sees(wiring, connection, name)
        }
        assert seen == {
            ("Far", "global"), ("Near", "process"), ("Near", "global"),
            ("LocalConnection", "local"), ("LocalConnection", "process"), ("LocalConnection", "global"),
        }  # fmt: skip
        board.expected["E", "local"] = 1
        assert board.visible_queue(far, "local", "E").name == "local"
        with pytest.raises(UnknownName):
            board.visible_queue(far, "local", "F")


def _sees(wiring: Wiring, connection: LocalConnection, name: str) -> bool:
    found = []
    for look in (
        lambda: wiring._board.visible_queue(connection, name, "E"),
        lambda: wiring._board.visible_exchange(connection, name),
    ):
        try:
            look()
        except UnknownName:
            found.append(False)
        else:
            found.append(True)
    assert len(set(found)) == 1
    return found[0]


async def test_words() -> None:
    """What is no word, or one that nobody knows, is one documented error."""
    async with Wiring() as wiring:
        board = wiring._board
        for word in ({}, {"word": 3}, {"word": "dance"}, {"word": "gone"}, {"word": "close"}, {"word": "end"}):
            with pytest.raises(ProtocolError):
                board.hear(board.local, word)
        assert board.hear(board.local, {"word": "gone", "pipe": 5, "queue": "Q"}) == {}
        assert board.hear(board.local, {"word": "end", "pipe": 5}) == {}
