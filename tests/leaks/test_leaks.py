"""Nothing is left of what has ended, however often: connections, requests, cancellations, refusals, timeouts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LOOPS
from tests.leaks.ledger import Account
from tests.leaks.work import WORKS

ROOT = Path(__file__).parent.parent.parent

#: What a process holds is read after each. A third of them is more than asyncio takes to clear its cancelled timers.
ROUNDS = 18

# What may be more in the last third of the rounds than in the one before, however much was done in them: tables of the
# interpreter and of the event loop grow in steps, and a few hundred timers that were cancelled may wait there. The
# allocator keeps pages of a round at its height, more or fewer of them each time.
LIMITS = {"traced": 96 * 1024, "objects": 500, "resident": 16 * 1024 * 1024}

#: Enough that 32 bytes of each operation in a third of the rounds are above the limit; nodes that come and go take longer.
COUNTS = dict.fromkeys(WORKS, 18_000) | {"connections": 3_600, "vanished": 7_200}

#: Divides them where a commit waits: an object, or 150 bytes, of each operation are above the limit then.
SOME = dict.fromkeys(WORKS, 9) | {"connections": 6, "refusals": 3, "timeouts": 3, "vanished": 3}

#: They fill tables of what is remembered first, which takes longer than the rest: at night.
SLOW = {"connections", "refusals", "timeouts", "vanished"}
EACH = [pytest.param(name, marks=pytest.mark.nightly if name in SLOW else ()) for name in WORKS]


def keep_flat(name: str, loop: str, count: int) -> None:
    """Do `count` operations in a process of their own and hold what it kept against the limits."""
    command = [sys.executable, "-m", "tests.leaks.program", name, loop, str(ROUNDS), str(count // ROUNDS)]
    paths = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry)
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True, check=True
    )
    account = Account.decode(json.loads(done.stdout))
    growth = {number: account.growth(number) for number in LIMITS}
    print(name, loop, count, growth, *account.readings, "lines", *account.lines, "types", *account.types, sep="\n  ")
    assert {number: value for number, value in growth.items() if value > LIMITS[number]} == {}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", EACH)
def test_nothing_is_left(name: str) -> None:
    """Of two thousand operations nothing is left: neither memory that Python traces, nor objects, nor pages."""
    keep_flat(name, "asyncio", COUNTS[name] // SOME[name])


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", WORKS)
def test_nothing_is_left_of_many(name: str) -> None:
    """The same of many more, of which less may be left."""
    keep_flat(name, "asyncio", COUNTS[name])


@pytest.mark.nightly
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", WORKS)
def test_nothing_is_left_of_a_million(name: str, loop: str) -> None:
    """Of a million operations of each kind no more is left than of thousands, on either event loop."""
    keep_flat(name, loop, 1_000_000)
