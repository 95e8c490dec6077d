"""Ctrl-C at any moment, once and in bursts: nothing waits for ever, and nothing that was confirmed is lost."""

from __future__ import annotations

import sys

import pytest

from redpoll import nq
from redpoll.blocking import loop_thread
from redpoll.nq.tcp.server import Communicator
from tests.blocking.support import until
from tests.nq.survival.stormy import SCRIPTS
from tests.storms import storm


@pytest.mark.parametrize("script", list(SCRIPTS))
def test_storms(script: str) -> None:
    """Interrupted wherever it is, a communicator loses and doubles nothing, and whatever waits on one that closed ends."""
    storm("tests.nq.survival.stormy", script, 1)


def test_dropped_while_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C before the first line of the finalizer of one that is dropped: it is closed all the same."""

    class Interrupted(Communicator):
        def __del__(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "unraisablehook", id)
    Interrupted(nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=0)))
    until(lambda: loop_thread._shared is None, "the loop to end")
