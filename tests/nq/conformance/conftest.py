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
from tests.nq.support import PLACES, World, certificate


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> nq.SecurityOptions:
    """The files of TLS, given to both ends."""
    return certificate(tmp_path_factory.mktemp("tls"))


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
