"""A healthy node whose handler computes: its loop answers nobody meanwhile, and no link is lost for it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from redpoll import Message
from tests.node.processes import COMPUTE, Process
from tests.node.support import Watch, make, within

#: Seconds that the handler takes longer than what is set for the test, at most, on a machine that is busy.
PATIENCE = 20.0


async def ask_one_that_computes(folder: Path, seconds: float, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """A request that takes so long, and what is sent to the same node meanwhile and afterwards, over one link."""
    async with Process(folder, **theirs) as process, make(**ours) as client:
        watch = Watch(client)
        await within(client.send(Message(b"before", process.address)))
        work = COMPUTE + str(seconds).encode()
        answer = client.request(Message(work, process.address), timeout=seconds + PATIENCE)
        behind = client.send(Message(b"behind", process.address), timeout=seconds + PATIENCE)
        assert (await answer).data == work
        await behind
        await within(client.send(Message(b"after", process.address)))
        # Suspect is all that it may become.
        assert watch.told in ([], ["suspect"])
        assert (client.stats().reconnects, client.stats().errors) == (0, 0)
        assert process.log == ["ready", "begun before", f"begun {work.decode()}", "begun behind", "begun after"]


def test_eight_seconds_with_the_defaults(tmp_path: Path) -> None:
    """A handler that computes for eight seconds costs nobody a link, however its peers are set by default."""
    asyncio.run(ask_one_that_computes(tmp_path, 8, {}, {}))


@pytest.mark.asyncio
async def test_who_waits_closes_nothing_in_three_times_keepalive(tmp_path: Path) -> None:
    """A peer that computes for longer than it takes to be suspect, and then answers, keeps its link."""
    await ask_one_that_computes(tmp_path, 1.3, {"keepalive": 30}, {"keepalive": 0.5})


@pytest.mark.asyncio
async def test_who_computes_does_not_judge_by_its_own_absence(tmp_path: Path) -> None:
    """A node that computes again and again, longer than its peers may be silent, reads before it judges."""
    async with Process(tmp_path, keepalive=0.1) as process, make() as quiet, make() as client:
        watch = Watch(quiet)
        await within(quiet.send(Message(b"before", process.address)))
        for _ in range(4):
            await within(client.request(Message(COMPUTE + b"0.5", process.address), timeout=PATIENCE))
        await within(quiet.send(Message(b"after", process.address)))
        assert watch.told == []
        assert quiet.stats().reconnects == 0
        assert process.log == ["ready", "begun before", *["begun compute 0.5"] * 4, "begun after"]
