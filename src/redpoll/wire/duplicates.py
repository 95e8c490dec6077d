"""Outcomes of a peer's recent messages, so that a resent message is answered again instead of handled again."""

from __future__ import annotations

from itertools import islice
from sys import getsizeof

__all__ = ["MAX_TEXTS", "OUTCOME_SIZE", "Outcome", "RecentOutcomes"]

#: Memory charged for an outcome without its text, in bytes.
OUTCOME_SIZE = 64

#: Maximum memory of the texts of refusals in each generation, in bytes; further refusals are remembered without text.
MAX_TEXTS = 32 * 1024

#: Outcome of a message: None if it was released, or the code and text of its refusal.
Outcome = tuple[int, str] | None


class RecentOutcomes:
    """Remembers at least the last `limit` outcomes and at most twice as many, by serial.

    There are two generations, of which the older is dropped whole: no message pays for keeping an order.
    """

    __slots__ = ("_limit", "_older", "_recent", "_texts")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._recent: dict[int, Outcome] = {}
        self._older: dict[int, Outcome] = {}
        #: Bytes of the texts in the recent generation.
        self._texts = 0

    def __len__(self) -> int:
        return len(self._recent) + len(self._older)

    def __contains__(self, serial: int) -> bool:
        return serial in self._recent or serial in self._older

    def __getitem__(self, serial: int) -> Outcome:
        if serial in self._recent:
            return self._recent[serial]
        return self._older[serial]

    @property
    def size(self) -> int:
        """Approximate memory of the outcomes, in bytes."""
        return OUTCOME_SIZE * len(self) + _size_of_texts(self._older) + self._texts

    def shorten(self, count: int) -> None:
        """Keep only the last `count` outcomes."""
        if len(self) > count:
            known = self._older | self._recent
            self._older = {}
            self._recent = dict(islice(known.items(), len(known) - count, None))
            self._texts = _size_of_texts(self._recent)

    def renew(self, serial: int) -> None:
        """Mark an outcome as the latest; a forgotten one is remembered as released."""
        if serial in self._recent:
            outcome = self._recent.pop(serial)
            self._texts -= _size_of_texts({serial: outcome})
        else:
            outcome = self._older.get(serial)
        self.note(serial, outcome)

    def note(self, serial: int, outcome: Outcome) -> None:
        """Remember the outcome of a message."""
        recent = self._recent
        if outcome is not None:
            outcome = self._with_text(*outcome)
        recent[serial] = outcome
        if len(recent) >= self._limit:
            self._older = recent
            self._recent = {}
            self._texts = 0

    def _with_text(self, code: int, text: str) -> Outcome:
        size = getsizeof(text) if text else 0
        if self._texts + size > MAX_TEXTS:
            return code, ""
        self._texts += size
        return code, text


def _size_of_texts(outcomes: dict[int, Outcome]) -> int:
    return sum(getsizeof(outcome[1]) for outcome in outcomes.values() if outcome and outcome[1])
