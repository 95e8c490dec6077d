"""`python -m redpoll`."""

from __future__ import annotations

import subprocess

from tests.cli.support import COMMAND, environment


def test_the_module_is_the_command() -> None:
    """`python -m redpoll` runs the command and calls itself by its name."""
    done = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 0
    assert "Usage: redpoll " in done.stdout
