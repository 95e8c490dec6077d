"""What --help shows."""

from __future__ import annotations

from redpoll.cli.options import epilog, flowing


def command() -> None:
    """One line.

    Another paragraph,
    and its rest.
    """


def test_line_breaks_flow() -> None:
    """Paragraphs stay apart, lines do not."""
    assert flowing(command) == "One line.\n\nAnother paragraph, and its rest."


def test_examples_stand_below_their_heading() -> None:
    """One example is "Example:", more are "Examples:", each on a line of its own."""
    assert epilog("redpoll a") == "Example:\n  redpoll a"
    assert epilog("redpoll a", "redpoll b") == "Examples:\n  redpoll a\n  redpoll b"
