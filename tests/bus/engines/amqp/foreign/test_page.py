"""The programs of docs/how-to/foreign.md, ours and those of the other libraries, serve each other."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.bus.engines.amqp.foreign.support import PATIENCE, Peer
from tests.doc_pages import ROOT, Block, blocks
from tests.rabbitmq import Broker

pytestmark = [pytest.mark.broker, pytest.mark.asyncio]

PAGE = ROOT / "docs" / "how-to" / "foreign.md"
PLACE = "guest:guest@127.0.0.1/"


def titled(title: str) -> Block:
    """The block of the page with a title."""
    (found,) = (block for block in blocks(PAGE) if f'title="{title}"' in block.info)
    return found


async def start(rabbitmq: Broker, title: str, folder: Path) -> asyncio.subprocess.Process:
    """Start the program of a block, with the place of the server in it."""
    text = titled(title).text
    assert PLACE in text
    program = folder / title
    program.write_text(text.replace(PLACE, rabbitmq.url.partition("://")[2]))
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(sys.executable, str(program), stdout=pipe)


async def ended(program: asyncio.subprocess.Process) -> str:
    """Wait for the end of a program, and return what it printed."""
    async with asyncio.timeout(PATIENCE):
        printed, _ = await program.communicate()
    assert program.returncode == 0
    return printed.decode()


async def served(rabbitmq: Broker) -> None:
    """Wait until a program consumes its three queues."""
    async with asyncio.timeout(PATIENCE):
        while await asyncio.to_thread(rabbitmq.consumers) != 3:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("title", "other", "printed"),
    [
        ("worker.py", "A kiwiPy program", ["42 is done", "pause: yes"]),
        ("server.py", "An oslo.messaging program", ["3 for ada"]),
    ],
)
async def test_programs_of_the_page(
    rabbitmq: Broker, tmp_path: Path, title: str, other: str, printed: list[str]
) -> None:
    """The program of the page with another library prints what the one with redpoll answers, and ends it."""
    program = await start(rabbitmq, title, tmp_path)
    try:
        await served(rabbitmq)
        async with Peer("said = []; print = said.append") as peer:
            text = titled(other).text
            assert PLACE in text
            await peer.run(text.replace(PLACE, rabbitmq.url.partition("://")[2]))
            assert await peer.run("said") == printed
            await ended(program)
    finally:
        if program.returncode is None:
            program.kill()
            await program.communicate()


async def test_audit(rabbitmq: Broker, tmp_path: Path) -> None:
    """The program with an exchange and a queue of others prints what the page shows."""
    assert await ended(await start(rabbitmq, "audit.py", tmp_path)) == titled("What audit.py prints").text
