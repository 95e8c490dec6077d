"""A peer whose process is stopped by the system: it keeps its socket and answers nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from redpoll import Expired, Message, NotConfirmed, PeerLost
from tests.node.processes import Process, compute
from tests.node.support import Watch, elapse, make, turns, until, within

pytestmark = pytest.mark.asyncio

KEEPALIVE = 0.3


@pytest.mark.parametrize("way", ["send", "request"])
async def test_frozen_for_too_long(tmp_path: Path, way: str) -> None:
    """It is suspect after keepalive, sends still queue, then its link is closed, and each error says truly what was sent."""
    # Its answers wait in the socket when it thaws; that it judges us then is of no interest here.
    async with Process(tmp_path, window=1, keepalive=30) as process, make(keepalive=KEEPALIVE) as client:
        address = process.address
        watch = Watch(client)
        await within(client.send(Message(b"before", address)))
        process.freeze()
        submit: Any = client.request if way == "request" else client.send
        sent = submit(Message(b"in flight", address), timeout=None)
        await until(lambda: watch.told, "suspicion")
        assert [(peer.address, peer.connected) for peer in watch.peers] == [(address, True)]
        queued = submit(Message(b"queued", address), timeout=5 * KEEPALIVE)
        assert (client.stats().in_flight, client.stats().queued) == (1, 1)
        with pytest.raises(NotConfirmed) as unsure:
            await within(sent)
        assert unsure.value.sent is True
        assert isinstance(unsure.value.__cause__, PeerLost)
        await turns()
        assert watch.told == ["suspect", "lost"]
        assert "ping timeout: nothing received for " in str(watch.errors[0])
        # The system takes the connection for the frozen process, but that says nothing.
        with pytest.raises(Expired) as unsent:
            await within(queued)
        assert unsent.value.sent is False
        process.thaw()
        await within(client.send(Message(b"after", address)))
        assert process.begun in (["before", "in flight", "after"], ["before", "after"])


@pytest.mark.parametrize("way", ["send", "request"])
async def test_thawed_in_time(tmp_path: Path, way: str) -> None:
    """A suspect that goes on in time keeps its link: all that was sent and queued is done once, in order."""
    async with Process(tmp_path, window=4) as process, make(keepalive=2 * KEEPALIVE) as client:
        watch = Watch(client)
        await within(client.send(Message(b"before", process.address)))
        process.freeze()
        submit: Any = client.request if way == "request" else client.send
        numbers = [str(number) for number in range(10)]
        futures = [submit(Message(number.encode(), process.address), timeout=None) for number in numbers]
        await until(lambda: watch.told, "suspicion")
        assert (client.stats().in_flight, client.stats().queued) == (4, 6)
        process.thaw()
        answers = await within(asyncio.gather(*futures))
        assert process.begun == ["before", *numbers]
        if way == "request":
            assert [answer.data.decode() for answer in answers] == numbers
        assert watch.told == ["suspect"]
        assert (client.stats().reconnects, client.stats().errors) == (0, 0)


async def test_two_that_were_frozen_together(tmp_path: Path) -> None:
    """Nodes on a machine that stood still do not take that for each other's silence, though one is back a little later."""
    async with Process(tmp_path, keepalive=0.5) as process, make(keepalive=0.5, listen=False) as client:
        watch = Watch(client)
        await within(client.send(Message(b"before", process.address)))
        process.freeze()
        await until(lambda: watch.told, "suspicion")
        compute(1.2)
        await elapse(0.4)
        process.thaw()
        await within(client.send(Message(b"after", process.address)))
        assert watch.told == ["suspect"]
        assert process.log == ["ready", "begun before", "begun after"]
