"""A process that does one work in rounds and prints what it held after each.

``python -m tests.leaks.program WORK LOOP ROUNDS COUNT``: the account of it is a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import tracemalloc

from tests.conftest import LOOPS
from tests.leaks.ledger import Account, Ledger
from tests.leaks.work import WORKS
from tests.node.support import turns


async def keep_account(name: str, rounds: int, count: int) -> Account:
    """Warm up, then do `count` operations in each round, and read what is held between them."""
    work, warm_up = WORKS[name]
    async with work() as operate:
        await operate(warm_up)
        ledger = Ledger()
        for _ in range(rounds):
            await operate(count)
            # What the last step of this task was woken by is held until the next one.
            await turns()
            ledger.read()
        return ledger.close()


def main() -> None:
    """Run the work that the command line names."""
    name, loop, rounds, count = sys.argv[1:]
    logging.disable()
    tracemalloc.start()
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        account = runner.run(keep_account(name, int(rounds), int(count)))
    print(json.dumps(account.encode()))


if __name__ == "__main__":
    main()
