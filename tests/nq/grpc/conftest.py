"""What tests of gRPC run under: its C library says nothing on stderr of what they do to it on purpose."""

from __future__ import annotations

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import pytest

from redpoll.nq.grpc import options


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is stuck is given up before anybody stops waiting for it."""
    monkeypatch.setattr(options, "STUCK", 200)
