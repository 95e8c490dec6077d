"""The page about RabbitMQ does what it says."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.doc_pages import ROOT
from tests.rabbitmq import Broker


@pytest.mark.broker
@pytest.mark.timeout(120)
def test_page_runs(rabbitmq: Broker) -> None:
    """The blocks of the page run on a RabbitMQ, and print what it shows."""
    page, port = ROOT / "docs" / "how-to" / "rabbitmq.md", f"5672={rabbitmq.server.port}"
    command = [sys.executable, "-W", "error", "-m", "tests.doc_pages", str(page), port]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
