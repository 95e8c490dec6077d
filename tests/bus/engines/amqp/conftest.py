"""What tests of RabbitMQ get by name, beside a server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bus.engines.amqp.workers import Worker


@pytest.fixture
def worker() -> Iterator[Worker]:
    """A worker in a process of its own, which is killed behind the test."""
    made = Worker()
    yield made
    made.kill()
