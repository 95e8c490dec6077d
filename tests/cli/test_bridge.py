"""`redpoll bridge`, as its users run it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import redpoll
from redpoll import Hub
from redpoll.bus import Task
from tests.cli.support import PATIENCE, refuse, started
from tests.ports import free_port


async def double(task: Task) -> int:
    """Work."""
    return int(task.data) * 2


@pytest.mark.asyncio
async def test_it_joins_two_hubs_until_it_is_stopped(tmp_path: Path) -> None:
    """It says that it is active, passes the queues that are named, ends with 0 on SIGTERM and says how much passed."""
    async with Hub(tmp_path / "one", 0) as one, Hub(tmp_path / "other", 0) as other:
        file = tmp_path / "other.url"
        file.write_text(f"{other.url}\n")
        options = ("--queue", "named", "--name", "pair", "--json")
        with started(tmp_path, "bridge", one.url, f"@{file}", *options) as running:
            assert await asyncio.to_thread(running.event) == {"event": "bridging", "name": "pair", "active": True}
            async with redpoll.connect(one.url) as here, redpoll.connect(other.url) as there:
                async with there.tasks.worker(double, queue="named"), there.tasks.worker(double, queue="not named"):
                    assert await here.tasks.run(21, queue="named", timeout=PATIENCE) == 42
                assert "not named" not in await here.queues.names()
            assert await asyncio.to_thread(running.end) == 0
            ended = json.loads(running.rest())
    assert ended == {"event": "done", "forwarded": 1, "events": 0}


def test_wrong_urls(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """An engine that is none, or is not there, or is the same, and a file that is not there, are errors with their reason."""
    nobody = f"redpoll://127.0.0.1:{free_port()}?connect_timeout=0.2"
    for code, told, *urls in (
        (2, "there is no such engine", "memory://", "nowhere://x"),
        (2, "is the same engine as the first", "memory://same", "memory://same"),
        (2, "cannot be read", "memory://", f"@{tmp_path}/none"),
        (1, "cannot connect", "memory://", nobody),
    ):
        ended, out, err = refuse(capfd, "bridge", *urls)
        assert (ended, out, told in err) == (code, "", True), err
