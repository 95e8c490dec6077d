"""Pages that say what the bus does name tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from redpoll.testing.conformance import behaviours

ROOT = Path(__file__).parent.parent.parent.parent
PAGES = ("bus.md", "what-hurts.md", "what-survives.md")
_NAMED = re.compile(r"\b(?:[KTERBNO]|KX)-\d\d\b|\btest_\w+")


@pytest.mark.parametrize("page", PAGES)
def test_each_row_names_tests_that_there_are(page: str) -> None:
    """A test that a page names is in the suite or in this folder, and each row that promises something names one."""
    text = (ROOT / "docs" / "explanation" / page).read_text()
    sources = "\n".join(path.read_text() for path in (ROOT / "tests" / "bus").rglob("test_*.py"))
    there = {each.id for each in behaviours()} | set(re.findall(r"^(?:async )?def (test_\w+)", sources, re.MULTILINE))
    assert set(_NAMED.findall(text)) <= there, set(_NAMED.findall(text)) - there
    tables = re.findall(r"^\|.*\| tests \|\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    rows = [row for table in tables for row in table.splitlines()]
    assert len(rows) > 10
    assert [row for row in rows if not _NAMED.search(row.rstrip("|").rpartition("|")[2])] == []
