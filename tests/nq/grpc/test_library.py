"""grpcio is an extra."""

from __future__ import annotations

import sys

import grpc.aio
import pytest

from redpoll import nq
from redpoll.errors import UsageError
from redpoll.nq.grpc.carrier import GrpcCarrier
from redpoll.nq.grpc.library import load


def test_it_is_imported_where_it_is_used() -> None:
    """`load` returns it, with `aio`."""
    assert load() is grpc
    assert load().aio is grpc.aio


@pytest.mark.parametrize("module", ["grpc", "grpc.aio"])
def test_without_it_the_extra_is_named(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install, when the carrier is made."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=r"pip install 'redpoll\[grpc\]'"):
        GrpcCarrier(nq.CommunicatorOptions())


def test_another_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It belongs to the process that used it first; the remedy is named."""
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(UsageError, match="'spawn'"):
        GrpcCarrier(nq.CommunicatorOptions())
