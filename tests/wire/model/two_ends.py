"""Common parts of the models of two ends: both act, in one virtual time."""

from __future__ import annotations

from hypothesis.stateful import RuleBasedStateMachine

from tests.wire.model.ends import End

__all__ = ["TwoEnds"]


class TwoEnds(RuleBasedStateMachine):
    """A model of two nodes in miniature.

    Attributes:
        ends: Both; their clock is one.
    """

    ends: tuple[End, End]

    def settle(self) -> None:
        """Let each do what it has to do now."""
        for end in self.ends:
            end.run()

    def wait(self, seconds: float) -> None:
        """Let time pass, and each do what it has to do then."""
        self.ends[0].clock.now += seconds
        for end in self.ends:
            end.tick()
        self.settle()
