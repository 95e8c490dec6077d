"""Where the rows of the contract are tried: each protocol, plain and encrypted, for threads and for asyncio."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from redpoll import nq
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
    yield made
    made.end()
