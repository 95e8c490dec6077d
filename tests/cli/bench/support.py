"""The programs of `redpoll bench`, for their tests."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tests.cli.prepared import Command
from tests.cli.support import PATIENCE, environment


class Started:
    """A program in a process of its own, with JSON on its standard output."""

    def __init__(self, *arguments: str) -> None:
        pipe = subprocess.PIPE
        self.process = Command("bench", *arguments, "--json", stdout=pipe, stderr=pipe, env=environment())

    def end(self) -> tuple[int, list[dict[str, Any]], str]:
        """Wait for its end: exit code, events, and what it said on standard error, on one line."""
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, [json.loads(line) for line in out.splitlines()], " ".join(err.decode().split())


def end_all(*programs: Started) -> list[tuple[int, list[dict[str, Any]], str]]:
    """Wait for the end of several; those that are left when one does not end are killed."""
    try:
        return [program.end() for program in programs]
    finally:
        for program in programs:
            program.process.kill()
            program.process.communicate()
