from __future__ import annotations

from dataclasses import fields

from redpoll.stats import TurnedAway
from redpoll.wire.tally import Tally


def test_all_that_is_counted_is_documented() -> None:
    """Each count of a node is one that its statistics show, by the same name and from nothing."""
    assert [each.name for each in fields(Tally)] == [each.name for each in fields(TurnedAway)]
    assert not any(getattr(Tally(), each.name) or getattr(TurnedAway(), each.name) for each in fields(Tally))
