"""The policy of retries after an exception."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from redpoll.checks import Check, flag, integer, require, seconds
from redpoll.errors import ConfigError

__all__ = ["Retry", "check_result", "check_retry"]


def _share(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"must be a number, not {type(value).__name__}"
    return None if 0 <= value <= 1 else "must be 0 to 1"


_CHECKS: Final[Mapping[str, Check]] = MappingProxyType(
    {
        "times": integer(1, 1_000_000),
        "backoff": seconds,
        "longest": seconds,
        "jitter": _share,
        "dead_letter": flag,
    }
)


@dataclass(frozen=True, slots=True)
class Retry:
    """A policy for tasks whose handler raised. Times are seconds.

    The tries are counted in the task itself, so that it does not matter which worker makes the next one. The queue keeps
    the task meanwhile, not the worker. Attempts (`Task.attempt`) are something else: workers that were lost, and time
    limits that are tried again.

    Raises:
        ConfigError: A field has a value that it cannot have; the text names it.
    """

    times: int = 3
    """The number of tries after the first one."""

    on: type[BaseException] | tuple[type[BaseException], ...] = Exception
    """The exceptions; all others are the task's outcome at once. With `redpoll.errors.TimeLimit` among them, or a class above
    it, as `OSError` is, a time limit is a failed try too, and an attempt, of which the queue allows `max_attempts`."""

    backoff: float = 1.0
    """The pause before the second try; each one is twice as long as that before it."""

    longest: float = 60.0
    """The longest pause, at least `backoff`; equal to that, all are the same."""

    jitter: float = 0.5
    """The part of each pause that is left to chance, 0 to 1: tasks that failed together are not tried together."""

    dead_letter: bool = False
    """True to make a task a dead letter when it was tried often enough. False (default): the last exception is its
    outcome."""

    def __post_init__(self) -> None:
        """Check every field."""
        kinds: tuple[Any, ...] = self.on if isinstance(self.on, tuple) else (self.on,)
        if not all(isinstance(each, type) and issubclass(each, BaseException) for each in kinds):
            raise ConfigError("on", self.on, "must be a class of exceptions, or a tuple of them")
        for field, check in _CHECKS.items():
            require(field, getattr(self, field), check)
        if self.backoff > self.longest:
            raise ConfigError("backoff", self.backoff, f"is above the longest pause, {self.longest:g} s", "longest=")

    def covers(self, error: BaseException) -> bool:
        """Return True if it is tried again after an exception."""
        return isinstance(error, self.on)

    def pause(self, tries: int, chance: Callable[[], float] = random.random) -> float:
        """Seconds to wait after so many tries.

        Args:
            tries: The number of failed tries, 1 or more.
            chance: Gives a number from 0 to 1.
        """
        # More steps would overflow, and are beyond the longest pause.
        full = min(self.longest, self.backoff * 2.0 ** min(tries - 1, 100))
        return full * (1 - self.jitter * chance())


def check_retry(value: object) -> None:
    """Check for a policy, or None.

    Raises:
        ConfigError: It is something else.
    """
    if value is not None and not isinstance(value, Retry):
        raise ConfigError("retry", value, f"must be a Retry, not {type(value).__name__}", "Retry(times=3)")


def check_result(field: str, function: object) -> None:
    """Check that the function of a task has one result.

    Raises:
        ConfigError: It is a generator.
    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(field, function, "is a generator", "return the result; progress is task.progress(value)")
