"""kombu's integration tests for any transport, on a hub: a module for pytest, in a process of its own.

REDPOLL_TEST_HUB is the URL of the hub, KOMBU_TESTS the folder with kombu's `common`.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import kombu
import pytest

import redpoll.compat.kombu  # noqa: F401  # it registers the transport
from tests.ports import free_port

sys.path.insert(0, os.environ["KOMBU_TESTS"])
common: Any = importlib.import_module("common")
HUB = os.environ["REDPOLL_TEST_HUB"]


@pytest.fixture
def connection() -> Any:
    """A connection to the hub."""
    return kombu.Connection(HUB)


@pytest.fixture
def invalid_connection() -> Any:
    """A connection to nothing."""
    return kombu.Connection(f"redpoll://127.0.0.1:{free_port()}")


@pytest.fixture
def failover_connection() -> Any:
    """A connection to nothing, or to the hub."""
    return kombu.Connection([f"redpoll://127.0.0.1:{free_port()}", HUB])


class TestBasic(common.BasicFunctionality):  # type: ignore[misc]
    """Connections, channels, queues."""


class TestExchanges(common.BaseExchangeTypes):  # type: ignore[misc]
    """Exchanges."""


class TestTimeToLive(common.BaseTimeToLive):  # type: ignore[misc]
    """Messages that expire."""


class TestPriority(common.BasePriority):  # type: ignore[misc]
    """Priorities: a higher number is a higher one."""


class TestMessage(common.BaseMessage):  # type: ignore[misc]
    """Acknowledgements."""


class TestEventLoop(common.BaseEventLoop):  # type: ignore[misc]
    """kombu's event loop."""


class TestFailover(common.BaseFailover):  # type: ignore[misc]
    """Several hubs in a URL."""
