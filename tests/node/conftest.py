"""What tests of nodes get by name."""

from __future__ import annotations

from typing import Any

import pytest

from redpoll import TLS
from redpoll.testing.certificates import Certificates
from tests.node.encrypted import Make


@pytest.fixture
def issued(redpoll_pki: Certificates) -> Make:
    """Makes the record of a node of one CA."""

    def issue(**options: Any) -> TLS:
        return TLS(certificate=redpoll_pki.issue(), **options)

    return issue
