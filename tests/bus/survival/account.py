"""The account of what processes wrote: what was promised, and what became of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from redpoll.bus.records import TaskInfo
from tests.bus.survival.programs import DEADLINE, Running

__all__ = ["Account"]

#: Seconds beyond its deadlines that a caller may have on a machine that is busy.
_BUSY = 10.0


class Account:
    """What was written, by task.

    Attributes:
        confirmed: The tasks of each number that were confirmed.
        begun: When each task was begun.
        recorded: When the workers of each task were told that its outcome is recorded.
        refused: When they were told that it is not.
        results: What callers were told of each task.
        withdrawn: Tasks whose cancelling was confirmed before they began, and when.
        asked: When each call was made, and when it was answered, or its caller was killed.
        faults: Errors that nobody expected.
    """

    def __init__(self, processes: Iterable[Running]) -> None:
        self.confirmed: dict[str, set[str]] = defaultdict(set)
        self.begun: dict[str, list[float]] = defaultdict(list)
        self.recorded: dict[str, list[float]] = defaultdict(list)
        self.refused: dict[str, list[float]] = defaultdict(list)
        self.results: dict[str, list[str]] = defaultdict(list)
        self.withdrawn: dict[str, float] = {}
        self.asked: dict[str, tuple[float, float]] = {}
        self.faults: list[list[str]] = []
        for process in processes:
            for word, *rest in process.log:
                match word:
                    case "confirmed":
                        self.confirmed[rest[1]].add(rest[0])
                    case "begun":
                        self.begun[rest[1]].append(float(rest[0]))
                    case "recorded" | "refused":
                        getattr(self, word)[rest[1]].append(float(rest[0]))
                    case "result":
                        self.results[rest[0]].append(rest[1])
                    case "cancel" if rest[2] == "withdrawn":
                        self.withdrawn[rest[1]] = float(rest[0])
                    case "asked":
                        self.asked[rest[0]] = float(rest[1]), process.killed
                    case "answered":
                        self.asked[rest[0]] = self.asked[rest[0]][0], float(rest[1])
                    case "fault":
                        self.faults.append(rest)

    @property
    def tasks(self) -> list[str]:
        """All tasks that were confirmed."""
        return [task for tasks in self.confirmed.values() for task in tasks]

    def check(self, found: dict[str, TaskInfo], answers: dict[str, str]) -> None:
        """Hold against what the hub has at the end.

        Args:
            found: Each confirmed task, as the hub knows it.
            answers: The outcome of each, as its callers would be told it.
        """
        assert not self.faults, self.faults[:3]
        for number, tasks in self.confirmed.items():
            assert len(tasks) == 1, f"{number} was made more than once: {tasks}"
        for task in self.tasks:
            # One outcome, recorded: what a worker or a caller was told is that one.
            assert found[task].state in {"done", "dead"}, found[task]
            assert found[task].outcome is not None, found[task]
            assert set(self.results[task]) <= {answers[task]}, (task, self.results[task], answers[task])
            recorded = self.recorded[task]
            assert len(recorded) <= 1, f"two workers were told that the outcome of {task} is theirs"
            if recorded:
                assert not [each for each in self.begun[task] if each > recorded[0]], f"{task} was begun again"
        for task, when in self.withdrawn.items():
            assert not self.begun[task], f"{task} was begun, though it was withdrawn at {when}"
        for number, (asked, answered) in self.asked.items():
            assert answered - asked < 2 * DEADLINE + _BUSY, f"{number} was not answered in time"
