"""Whether lines arrived as they were sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from redpoll.cli.demo import check_delivery

if TYPE_CHECKING:
    from pathlib import Path

LINES = [b"a", b"b", b""]


@pytest.mark.parametrize(
    ("written", "received", "first"),
    [
        (b"a\nb\n\na\nb\n\n", 6, None),
        (b"", 0, 1),
        (b"a\nb\n\na\nb\n", 5, 6),
        (b"a\nb\n\na\nb\n\na\n", 7, 7),
        (b"a\n\nb\na\nb\n\n", 6, 2),
        (b"a\nb\n\na\nb\nx", 6, 6),
        (b"a\na\nb\n\na\nb\n\n", 7, 2),
    ],
    ids=["exact", "nothing", "one missing", "one too many", "out of order", "no newline", "one twice"],
)
def test_the_first_difference_is_found(tmp_path: Path, written: bytes, received: int, first: int | None) -> None:
    """What is missing, different, doubled or too many is found at its first line."""
    (tmp_path / "written").write_bytes(written)
    delivery = check_delivery(LINES, 2, tmp_path / "written")
    assert (delivery.sent, delivery.received, delivery.first_difference) == (6, received, first)
    assert delivery.exact == (first is None)
