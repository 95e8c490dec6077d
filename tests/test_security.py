"""docs/explanation/security.md against the tests: each defence is shown by a test that exists."""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.source_tree import ROOT, TESTS
from tests.test_tests import found_in

PAGE = ROOT / "docs" / "explanation" / "security.md"

ROW = re.compile(r"^\| (.+?) \| (.+?) \| (.+?) \| (`.+?`) \|$", re.MULTILINE)
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


class Threat(NamedTuple):
    """A row of the table."""

    attacker: str
    attack: str
    defence: str
    shown_by: str


THREATS = [Threat(*row) for row in ROW.findall(PAGE.read_text())]


def test_the_table_is_read() -> None:
    """Each line of the table but its head is one with tests."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    assert len(THREATS) == len(lines) - 2 > 20


def test_each_threat_has_its_tests() -> None:
    """What is named in the last column are tests, and they are there."""
    for threat in THREATS:
        tests = TEST.findall(threat.shown_by)
        assert ", ".join(f"`{path}::{name}`" for path, name in tests) == threat.shown_by
        assert not [(path, name) for path, name in tests if name not in found_in(TESTS / path)], threat.attack
