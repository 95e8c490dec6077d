"""When a line may be logged that anybody can cause."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

from redpoll.node.reports import LogLimit


def test_one_line_a_second() -> None:
    """The first line may be logged, whatever the clock says, and the next one a second later, and not before."""
    clock = SimpleNamespace(now=-5.0)
    loop = cast("asyncio.AbstractEventLoop", SimpleNamespace(time=lambda: clock.now))
    lines = LogLimit(loop)
    told = []
    for clock.now in (-5.0, -5.0, -4.5, -4.0, -3.5, 10.0, 10.5):
        told.append(lines.may_log())
    assert told == [True, False, False, True, False, True, False]
