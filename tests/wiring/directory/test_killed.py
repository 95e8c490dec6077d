"""A directory in a process of its own, which is killed, frozen and started again at its port at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from redpoll.errors import DirectoryUnavailable
from redpoll.wiring.directory import DirectoryClient, Entry
from tests.cli.support import COMMAND, environment
from tests.node.support import until, within
from tests.ports import free_port
from tests.wiring.directory.support import HERE, OWNER, THERE

pytestmark = pytest.mark.asyncio

#: Seconds that an interpreter has to start, on a machine that is busy.
START = 30.0


class Process:
    """`redpoll directory` at one port, in one process after another."""

    def __init__(self, lease: float) -> None:
        self.port = free_port()
        self._lease = lease
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it; it listens when this is done."""
        arguments = ("directory", "--port", str(self.port), "--lease", str(self._lease), "--json")
        self._process = await asyncio.create_subprocess_exec(
            *COMMAND, *arguments, stdout=asyncio.subprocess.PIPE, env=environment()
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(START):
            assert b"listening" in await self._process.stdout.readline()

    async def kill(self) -> None:
        """End it without a word."""
        if self._process is not None:
            self._process.kill()
            await self._process.communicate()
            self._process = None

    def client(self, **options: object) -> DirectoryClient:
        """A client of whichever runs."""
        return DirectoryClient(f"127.0.0.1:{self.port}", timeout=3 * START, **options)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def directory(lease: float = 60.0) -> AsyncIterator[Process]:
    """A directory that runs, and may be killed."""
    process = Process(lease)
    try:
        await process.start()
        yield process
    finally:
        await process.kill()


async def test_killed_and_started_again() -> None:
    """Names and watches are there again by themselves; a lookup waits meanwhile, and no longer than it was told to."""
    async with directory() as process, process.client() as owner, process.client() as other:
        told: list[Entry | None] = []
        for number in range(300):
            await owner.register("queue", f"Q{number}", HERE)
        other.watch("queue", "Q7", told.append)
        await until(lambda: told, "the news")
        await process.kill()
        await until(lambda: owner.state == other.state == "lost", "the loss")
        with pytest.raises(DirectoryUnavailable):
            await other.lookup("queue", "Q7", timeout=0.05)
        looking = asyncio.ensure_future(other.lookup("queue", "Q7"))
        adding = asyncio.ensure_future(owner.register("queue", "Q300", HERE))
        await process.start()
        found = await looking
        assert found is not None
        assert found.address == HERE
        await adding
        while len(await other.list()) < 301:
            pass
        await owner.unregister("queue", "Q7")
        await until(lambda: told[-1] is None, "news of the new one")
        assert told == [found, None]


@pytest.mark.timeout(150)
async def test_killed_again_and_again() -> None:
    """Whatever clients do while a directory is killed at any moment, in the end it knows what they want, and so do they."""
    draw = random.Random(7)
    async with directory(lease=3.0) as process:
        clients = [process.client() for _ in range(3)]
        async with contextlib.AsyncExitStack() as stack:
            for client in clients:
                await stack.enter_async_context(client)
            wanted: dict[str, DirectoryClient] = {}
            seen: dict[str, Entry | None] = {}
            watched = [f"Q{number}" for number in range(30)]
            for name in watched:
                clients[0].watch("queue", name, lambda entry, name=name: seen.__setitem__(name, entry))  # type: ignore[misc]

            async def work() -> None:
                for _ in range(150):
                    name = draw.choice(watched)
                    owner = wanted.get(name)
                    if owner is None:
                        wanted[name] = owner = draw.choice(clients)
                        await owner.register("queue", name, draw.choice([HERE, THERE]))
                    else:
                        del wanted[name]
                        await owner.unregister("queue", name)

            working = asyncio.ensure_future(work())
            for _ in range(3):
                for _ in range(draw.randrange(200)):
                    await asyncio.sleep(0)
                await process.kill()
                await process.start()
            await within(working)

            def agree() -> bool:
                return {name for name, entry in seen.items() if entry is not None} == set(wanted)

            async with asyncio.timeout(START):
                while {entry.name for entry in await clients[1].list()} != set(wanted):
                    pass
            await until(agree, "what is watched to be what is so")


async def test_an_owner_that_is_killed(tmp_path: Path) -> None:
    """Its name is suspect at once and gone after the lease; started again with its identity it has it at once."""
    program = tmp_path / "owner.py"
    program.write_text(
        "import asyncio, sys\n"
        "from redpoll.wiring.directory import DirectoryClient\n"
        "async def main(port, address):\n"
        "    async with DirectoryClient(f'127.0.0.1:{port}', owner_identity=b'o' * 16) as client:\n"
        "        await client.register('exchange', 'E', address)\n"
        "        print('registered', flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main(*sys.argv[1:]))\n"
    )

    def start(address: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(program), str(process.port), address]
        return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment())

    async with directory(lease=1.0) as process, process.client() as watcher:
        told: list[Entry | None] = []
        watcher.watch("exchange", "E", told.append)
        for address in (str(HERE), str(THERE)):
            owner = start(address)
            try:
                assert owner.stdout is not None
                line = await asyncio.to_thread(owner.stdout.readline)
                assert line == b"registered\n"
            finally:
                owner.kill()
                owner.communicate()
            await until(lambda: told and told[-1] is not None and told[-1].suspect, "the loss")
        addresses = [(str(entry.address), entry.suspect) for entry in told if entry is not None]
        assert addresses == [(str(HERE), False), (str(HERE), True), (str(THERE), False), (str(THERE), True)]
        assert {entry.identity for entry in told if entry is not None} == {OWNER}
        await until(lambda: told[-1] is None, "the end of the lease")
