"""What became of a peer's recent messages, so that one sent again is answered again and not done again."""

from __future__ import annotations

__all__ = ["Outcome", "RecentOutcomes"]

#: How a message ended: None for released, or the code and text of the refusal.
Outcome = tuple[int, str] | None


class RecentOutcomes:
    """Remembers at least the last `limit` and at most twice as many outcomes, by serial; older ones are forgotten.

    Two generations, the older dropped whole: no message pays for keeping an order.
    """

    __slots__ = ("_limit", "_older", "_recent")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._recent: dict[int, Outcome] = {}
        self._older: dict[int, Outcome] = {}

    def __len__(self) -> int:
        return len(self._recent) + len(self._older)

    def __contains__(self, serial: int) -> bool:
        return serial in self._recent or serial in self._older

    def __getitem__(self, serial: int) -> Outcome:
        if serial in self._recent:
            return self._recent[serial]
        return self._older[serial]

    def note(self, serial: int, outcome: Outcome) -> None:
        """Remember how the message ended."""
        recent = self._recent
        recent[serial] = outcome
        if len(recent) >= self._limit:
            self._older = recent
            self._recent = {}
