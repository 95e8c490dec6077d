"""What tests of nodes get by name."""

from __future__ import annotations

from typing import Any

import pytest

from redpoll import TLS
from redpoll.node import admission, claims
from redpoll.testing.certificates import Certificates
from tests.node.encrypted import Make


@pytest.fixture
def issued(redpoll_pki: Certificates) -> Make:
    """Makes the record of a node of one CA."""

    def issue(**options: Any) -> TLS:
        return TLS(certificate=redpoll_pki.issue(), **options)

    return issue


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims have less time."""
    monkeypatch.setattr(admission, "CLAIM_TIMEOUT", 0.05)
    monkeypatch.setattr(claims, "DOUBT_TIMEOUT", 0.05)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims have more time than a test."""
    monkeypatch.setattr(admission, "CLAIM_TIMEOUT", 600.0)
