"""One campaign: inputs through a target, and what tells whether it held."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import signal
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import NoReturn

from benchmarks.memory import resident_bytes

__all__ = ["InvariantError", "LeakError", "Watch", "end_what_does_not"]

#: Of how many inputs one has its memory traced, which takes several times as long.
_TRACED = 500
#: Bytes that an input may take at its height, and how many more for each of its own.
_PEAK = 8 * 1024 * 1024
_PEAK_OF_BYTE = 1024

#: After how many inputs what the process holds is read.
_READ = 2_500
#: Readings from which on a leak can be told: the first third of them is what is kept once.
_ENOUGH = 9
#: What may be more in the last third of the readings than in the one before: objects in the allocator, and bytes.
_BLOCKS = 2_000
_RESIDENT = 32 * 1024 * 1024

#: Seconds after which an input is taken to be one that never ends.
_PATIENCE = 20.0


class InvariantError(Exception):
    """An input broke its target's invariant; the text says where it is kept and how to run it again."""


class LeakError(Exception):
    """What the process holds grows with the number of inputs."""


class Watch:
    """Gives inputs to a target, one a call.

    Args:
        name: The target's name.
        target: What takes an input, and raises if its invariant does not hold.
        crashes: The folder where inputs that break it are written, each under its hash.
        native: Whether the process holds what grows beside Python, such as a fuzzer's own corpus.

    Attributes:
        count: Inputs so far.
        slowest: The longest time that one took, seconds.
    """

    def __init__(self, name: str, target: Callable[[bytes], object], crashes: Path, *, native: bool = False) -> None:
        self._name = name
        self._target = target
        self._crashes = crashes
        self._native = native
        self._readings: list[tuple[int, int]] = []
        self._began = perf_counter()
        self.count = 0
        self.slowest = 0.0

    def __call__(self, data: bytes) -> None:
        """Run one input.

        Raises:
            InvariantError: The target raised, took too much memory, or did not end.
        """
        self.count += 1
        began = perf_counter()
        try:
            with _in_time():
                self._traced(data) if self.count % _TRACED == 0 else self._target(data)
        except Exception as error:  # noqa: BLE001 - that nothing else is raised is what is looked at
            self._keep(data, error)
        self.slowest = max(self.slowest, perf_counter() - began)
        if self.count % _READ == 0:
            gc.collect()
            self._readings.append((sys.getallocatedblocks(), resident_bytes()))

    def _traced(self, data: bytes) -> None:
        tracemalloc.start()
        try:
            self._target(data)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        allowed = _PEAK + _PEAK_OF_BYTE * len(data)
        assert peak <= allowed, f"it took {peak} bytes of memory, more than {allowed}"

    def _keep(self, data: bytes, error: Exception) -> NoReturn:
        path = self._crashes / hashlib.sha256(data).hexdigest()[:16]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        again = f"python -m tests.fuzz {self._name} {path}"
        raise InvariantError(f"{type(error).__name__}: {error}\nrun it again: {again}") from error

    def close(self) -> None:
        """See whether anything was kept.

        Raises:
            LeakError: More was held from third to third; only of some ten thousand inputs it can be told.
        """
        if len(self._readings) < _ENOUGH:
            return
        blocks, resident = (self._growth(which) for which in (0, 1))
        if blocks > _BLOCKS or (resident > _RESIDENT and not self._native):
            raise LeakError(
                f"{self._name}: {blocks} objects and {resident} bytes more in the last third of {self.count} inputs"
            )

    def _growth(self, which: int) -> int:
        numbers = [reading[which] for reading in self._readings]
        third = len(numbers) // 3
        return min(numbers[-third:]) - min(numbers[-2 * third : -third])

    @property
    def seconds(self) -> float:
        """Since the campaign began."""
        return perf_counter() - self._began

    def __str__(self) -> str:
        """What was done."""
        rate = self.count / max(self.seconds, 1e-9)
        slowest = f"slowest {self.slowest * 1000:.0f} ms"
        return f"{self._name}: {self.count:,} inputs in {self.seconds:.0f} s, {rate:,.0f} a second, {slowest}"


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    """End what does not, where the system can."""
    if not _CAN_INTERRUPT or signal.getsignal(signal.SIGALRM) is not _interrupt:
        yield
        return
    # Again and again: Python ignores what is raised while it collects garbage.
    signal.setitimer(signal.ITIMER_REAL, _PATIENCE, _PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


_CAN_INTERRUPT = hasattr(signal, "setitimer")


def _interrupt(number: int, frame: object) -> NoReturn:
    raise TimeoutError(f"it did not end within {_PATIENCE:g} s")


def end_what_does_not() -> None:
    """Take inputs that do not end as broken from here on: for a process that does nothing else."""
    if _CAN_INTERRUPT:
        signal.signal(signal.SIGALRM, _interrupt)
