"""A pool of workers is restarted one process at a time, under load, and nobody notices."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests.promise.accountant import restart_in_turn
from tests.promise.programs import REFUSED_EVERY


@pytest.mark.timeout(300)
def test_a_pool_is_restarted_one_by_one(tmp_path: Path) -> None:
    """No send fails, and each message is handled once: what a worker did not begin goes to its successor."""
    count = 3_000
    books = asyncio.run(restart_in_turn(count, 3, tmp_path))
    outcomes = books.outcomes()
    failed = {number: word for number, word in outcomes.items() if word != "ok" and number % REFUSED_EVERY}
    assert not failed
    assert all(outcomes[number] == "refused" for number in outcomes if not number % REFUSED_EVERY)
    begun = Counter(number for _, number, word in books.receiver if word == "begun")
    assert set(begun) == set(outcomes)
    assert set(begun.values()) == {1}
