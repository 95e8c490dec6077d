"""The page of what the engines do is what they were seen to do."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from redpoll.testing.conformance import Setting, behaviours, observe, table
from redpoll.testing.conformance.__main__ import main

ROOT = Path(__file__).parent.parent.parent.parent
PAGE = ROOT / "docs" / "reference" / "conformance.md"
#: The columns of the page, each by its title. It is made again by `python tests/testing/conformance/test_table.py`.
COLUMNS = {
    "`memory://`": Setting("memory://"),
    "`memory://`, threads": Setting("memory://", face="blocking"),
}
_BEGIN, _END = "<!-- the table -->\n", "<!-- its end -->\n"


def page() -> str:
    """The page, with its table made anew."""
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    _, found, after = rest.partition(_END)
    assert found
    seen = {title: observe(setting) for title, setting in COLUMNS.items()}
    return f"{before}{_BEGIN}\n{table(seen, behaviours())}\n{_END}{after}"


def test_the_page_is_what_was_seen() -> None:
    """The table of behaviours and engines in the documentation is that of a run of all behaviours."""
    assert page() == PAGE.read_text(), f"run {Path(__file__).relative_to(ROOT)}"


def test_the_command_says_whether_all_holds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command prints the table, and fails where something does not hold, or where it is given nothing."""
    seen = {"X-01": "yes"}
    monkeypatch.setattr("redpoll.testing.conformance.__main__.observe", lambda _: seen)
    assert main(["memory://"]) == 0
    assert capsys.readouterr().out.startswith("| | behaviour | memory:// |\n")
    seen["X-01"] = "no"
    assert main(["memory://"]) == 1
    assert main([]) == main(["--help"]) == 2
    assert "usage" in capsys.readouterr().err


if __name__ == "__main__":
    logging.basicConfig()
    PAGE.write_text(page())
