"""A directory on one machine, and processes that have names on another: what can be registered there, and who finds it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cli.support import environment
from tests.interop.namespaces import Namespace, two_namespaces
from tests.interop.raw import BOUND

pytestmark = pytest.mark.interop

PORT = 5682

#: Serves until it is killed.
DIRECTORY = """
import asyncio, sys
from redpoll.wiring.directory import Directory

async def main(host, port):
    async with Directory(host, int(port), encryption=False) as directory:
        print(directory.address, flush=True)
        await directory.serve_forever()

asyncio.run(main(*sys.argv[1:]))
"""

#: Registers a queue at each address that is given, and says what becomes of it.
CLIENT = """
import asyncio, json, sys
from redpoll import RedpollError
from redpoll.wiring.directory import DirectoryClient

async def main(directory, *places):
    async with DirectoryClient(directory, encryption=False, timeout=20) as client:
        for place in places:
            try:
                await client.register("queue", place, place)
            except RedpollError as error:
                print(json.dumps([type(error).__name__, str(error)]))
            else:
                found = await client.lookup("queue", place)
                print(json.dumps(["registered", str(found.address)]))
        print(json.dumps([client.near, client.local_host]))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def machines() -> Iterator[tuple[Namespace, Namespace]]:
    """That of the directory, and the other one."""
    with two_namespaces() as both:
        yield both


@pytest.fixture
def directory(machines: tuple[Namespace, Namespace]) -> Iterator[str]:
    """Where a directory listens for other machines."""
    here, _ = machines
    command = [*here.within, sys.executable, "-c", DIRECTORY, here.host, str(PORT)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment())
    try:
        assert process.stdout is not None
        address = process.stdout.readline().decode().strip()
        assert address == f"{here.host}:{PORT}"
        yield address
    finally:
        process.kill()
        process.communicate()


def register(machine: Namespace, directory: str, *places: str) -> list[list[str]]:
    """What becomes of registrations that a program on a machine makes."""
    command = [*machine.within, sys.executable, "-c", CLIENT, directory, *places]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * BOUND, env=environment())
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_loopback_from_another_machine(machines: tuple[Namespace, Namespace], directory: str) -> None:
    """What only its own machine can reach is refused, with the remedy; what others can reach is registered."""
    _, there = machines
    loopback, reachable, known = register(there, directory, "127.0.0.1:4000", f"{there.host}:4000")
    assert loopback[0] == "ConfigError"
    assert f"the link to the directory at {directory} is not on loopback" in loopback[1]
    assert "give host= or advertise=" in loopback[1]
    assert reachable == ["registered", f"{there.host}:4000"]
    assert known == [False, there.host]
