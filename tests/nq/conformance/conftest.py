"""Where the rows of the contract are tried: each protocol, plain and encrypted, for threads and for asyncio."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import pytest

from redpoll import nq
from tests.blocking.support import until
from tests.nq.mqtt.support import Mosquitto
from tests.nq.support import PLACES, World, certificate


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> nq.SecurityOptions:
    """The files of TLS, given to both ends."""
    return certificate(tmp_path_factory.mktemp("tls"))


def _broker(folder: Path, *lines: str) -> Iterator[nq.NetworkLocation]:
    broker = Mosquitto(folder, "allow_anonymous true", *lines)
    broker.start()
    yield nq.NetworkLocation("127.0.0.1", broker.address.port)
    broker.kill()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[nq.NetworkLocation]:
    """A broker for all tests."""
    yield from _broker(tmp_path_factory.mktemp("broker"))


@pytest.fixture(scope="session")
def encrypted_broker(
    tmp_path_factory: pytest.TempPathFactory, files: nq.SecurityOptions
) -> Iterator[nq.NetworkLocation]:
    """Another one, that encrypts."""
    yield from _broker(tmp_path_factory.mktemp("encrypted"), f"certfile {files.cert}", f"keyfile {files.key}")


@pytest.fixture(params=["threads", "aio"])
def facade(request: pytest.FixtureRequest) -> str:
    """Which of both facades."""
    return str(request.param)


@pytest.fixture(params=["plain", "tls"])
def security(request: pytest.FixtureRequest) -> nq.SecurityOptions | None:
    """Whether links are encrypted."""
    return request.getfixturevalue("files") if request.param == "tls" else None


@pytest.fixture(params=list(PLACES))
def protocol(request: pytest.FixtureRequest) -> str:
    """What carries links."""
    return str(request.param)


@pytest.fixture
def world(
    request: pytest.FixtureRequest, protocol: str, security: nq.SecurityOptions | None, facade: str
) -> Iterator[World]:
    """Where a test makes its ends; they are closed behind it."""
    made = World(protocol, security, facade, PLACES[protocol](request))  # type: ignore[arg-type]
    before = _descriptors()
    yield made
    made.end()
    if protocol == "grpc":
        # Its library closes what it has in its own time.
        until(lambda: gc.collect() >= 0 and not _descriptors() - before, "the library to let go")


def _descriptors() -> set[str]:
    """What is open."""
    found = set()
    for entry in Path("/dev/fd").iterdir():
        try:
            found.add(str(entry.readlink()))
        except OSError:  # that of the listing itself
            pass
    return {each for each in found if each.startswith("socket:")}
