"""The promise itself: through every fault, what succeeded was handled, and what failed says truly whether it was sent."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from tests.promise.accountant import Run, keep_books

#: Runs again with the same chances: REDPOLL_PROMISE_SEED=… pytest tests/promise.
SEED = int(os.environ.get("REDPOLL_PROMISE_SEED") or random.SystemRandom().randrange(1 << 32))


def keep_promise(run: Run, folder: Path) -> None:
    """Run it and hold the books against the promise; what is printed is shown if that fails."""
    print(f"REDPOLL_PROMISE_SEED={run.seed}")
    books = asyncio.run(keep_books(run, folder))
    books.check(run)
    of = list(books.outcomes().values())
    print({word: of.count(word) for word in set(of)})
    assert of.count("ok") > len(of) / 4, "hardly anything came through: the faults drown what is to be shown"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("retry", [0, 3])
def test_the_promise_is_kept(tmp_path: Path, retry: int) -> None:
    """2,000 messages through cuts, freezes, delays and splits, the receiver killed twice: each end is true."""
    keep_promise(Run(2_000, 2, retry, SEED), tmp_path)


@pytest.mark.timeout(300)
def test_sessions_keep_more(tmp_path: Path) -> None:
    """3,000 messages through dozens of lost links, with `resume`: none is lost, none runs twice, all begin in order."""
    run = Run(3_000, 0, 0, SEED, resume=120.0)
    print(f"REDPOLL_PROMISE_SEED={run.seed}")
    books = asyncio.run(keep_books(run, tmp_path))
    books.check(run)
    books.check_sessions(run)
    assert books.connections > 12, "hardly any link was lost"


@pytest.mark.nightly
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize(("count", "retry"), [(100_000, 0), (100_000, 3), (1_000_000, 3)])
def test_the_promise_is_kept_for_long(tmp_path: Path, count: int, retry: int) -> None:
    """100,000 and a million messages and ten kills: each end is true."""
    keep_promise(Run(count, 10, retry, SEED), tmp_path)
