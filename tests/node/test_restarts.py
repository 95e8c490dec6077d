"""A listener that comes up late, one that is killed and started again, and one that is started elsewhere."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from redpoll import Expired, Message, NotConfirmed
from tests.node.processes import Process
from tests.node.support import elapse, make, settle, until, within
from tests.ports import free_port

pytestmark = pytest.mark.asyncio


async def test_a_listener_that_comes_up_late(tmp_path: Path) -> None:
    """Sends and requests wait for a process that is started after them, and are done in order."""
    port = free_port()
    async with make() as client:
        address = f"127.0.0.1:{port}"
        sends = [client.send(Message(str(number).encode(), address), timeout=None) for number in range(5)]
        asked = client.request(Message(b"question", address), timeout=None)
        await elapse(0.1)
        assert client.stats().queued == 6
        async with Process(tmp_path, port=port) as process:
            await within(asyncio.gather(*sends))
            assert (await within(asked)).data == b"question"
            assert process.begun == ["0", "1", "2", "3", "4", "question"]


@pytest.mark.parametrize("retry", [0, 1])
async def test_a_listener_that_restarts(tmp_path: Path, retry: int) -> None:
    """What a killed process had is not confirmed, or done by its successor if asked for; what waited is done by that."""
    port = free_port()
    async with make() as client:
        async with Process(tmp_path, port=port, window=2) as process:
            await client.ready(process.address)
            process.freeze()
            futures = [
                client.send(Message(str(number).encode(), process.address), retry=retry, timeout=None)
                for number in range(6)
            ]
            assert (client.stats().in_flight, client.stats().queued) == (2, 4)
            process.kill()
            assert process.begun == []
        await until(lambda: client.stats().connections == 0, "the end of the link")
        async with Process(tmp_path, port=port) as successor:
            await settle(*futures)
            errors = [future.exception() for future in futures]
            assert errors[2:] == [None] * 4
            if retry:
                assert errors[:2] == [None, None]
            else:
                assert all(isinstance(error, NotConfirmed) and error.sent for error in errors[:2])
            assert successor.begun == [str(number) for number in range(0 if retry else 2, 6)]


async def test_a_listener_that_restarts_at_another_port(tmp_path: Path) -> None:
    """An address is not a name: what is for the old port waits there and was not sent; the new one has to be known."""
    async with make() as client:
        async with Process(tmp_path) as process:
            await within(client.send(Message(b"before", process.address)))
            old = process.address
        async with Process(tmp_path) as successor:
            with pytest.raises(Expired) as unsent:
                await within(client.send(Message(b"to the old port", old), timeout=0.3))
            assert unsent.value.sent is False
            await within(client.send(Message(b"to the new port", successor.address)))
            assert successor.begun == ["to the new port"]
