"""Where the rows of the contract are tried: each protocol, plain and encrypted, for threads and for asyncio."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import pytest

from redpoll import nq
from tests.blocking.support import until
from tests.nq.conformance.pairs import all_pairs
from tests.nq.mqtt.support import Mosquitto
from tests.nq.support import PLACES, World, certificate

FOLDER = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run each test so often that each two of its parameters meet; nightly in all combinations."""
    if os.environ.get("REDPOLL_TEST_PAIRS") == "0":
        return
    here = [item for item in items if item.path.parent == FOLDER and isinstance(item, pytest.Function)]
    dropped: set[pytest.Item] = set()
    for name, group in groupby(here, key=lambda item: item.nodeid.partition("[")[0]):
        cases = list(group)
        values = [_parameters(case) for case in cases]
        kept = set(all_pairs(values, name))
        dropped.update(case for at, case in enumerate(cases) if at not in kept)
    if dropped:
        config.hook.pytest_deselected(items=[item for item in items if item in dropped])
        items[:] = [item for item in items if item not in dropped]


def _parameters(item: pytest.Function) -> dict[str, str]:
    """Return the parameters of a test by name, as its name shows their values."""
    callspec = getattr(item, "callspec", None)
    return {} if callspec is None else dict(zip(callspec.params, callspec._idlist, strict=True))


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
