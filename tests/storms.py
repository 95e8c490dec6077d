"""Storms of Ctrl-C: a program gets SIGINT at random moments, alone and in bursts, and gives an account of what it did."""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from tests.cli.support import environment

__all__ = ["Storm", "run_script", "storm"]

#: Seconds that a storm lasts, at night longer, and that what is waited for has when it is over.
_LASTS = 3.0 if os.environ.get("REDPOLL_TEST_PAIRS") == "0" else 0.75
_PATIENCE = 20.0

#: Seconds between two bursts at most, and between two interruptions of one.
_PAUSE = 0.003
_GAPS = (0.0, 0.00002, 0.0002, 0.002)

Script = Callable[["Storm", random.Random], None]


class Storm:
    """What a program has of it: interruptions come where it attempts something, and nowhere else.

    Attributes:
        hits: Attempts that were interrupted.
    """

    def __init__(self) -> None:
        self._armed = False
        self._is_over = threading.Event()
        self.hits = 0

    def begin(self) -> None:
        """Have it begin; it is over when the standard input is."""
        signal.signal(signal.SIGINT, self._strike)
        threading.Thread(target=self._wait, daemon=True).start()
        print("begin", flush=True)

    def _wait(self) -> None:
        sys.stdin.read()
        self._is_over.set()

    def _strike(self, *_: object) -> None:
        if self._armed:
            raise KeyboardInterrupt

    @property
    def over(self) -> bool:
        """Whether it is."""
        return self._is_over.is_set()

    def attempt(self, function: Callable[[], Any]) -> tuple[bool, Any]:
        """Call a function that Ctrl-C may interrupt; whether it returned, and what."""
        try:
            self._armed = True
            result = function()
            self._armed = False
        except KeyboardInterrupt:
            self._armed = False
            self.hits += 1
            return False, None
        except BaseException:
            self._armed = False
            raise
        return True, result


def within(function: Callable[[], object], what: str) -> None:
    """Call what is to return by itself; the program fails if it does not."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    if thread.is_alive():
        print(f"waits for ever: {what}", file=sys.stderr, flush=True)
        faulthandler.dump_traceback()
        os._exit(3)


def all_end(futures: Iterable[Future[Any]], what: str) -> None:
    """Wait for futures, whatever comes of them."""
    within(lambda: [each.cancelled() or each.exception() for each in futures], what)


def confirmed(futures: Mapping[int, Future[Any]]) -> set[int]:
    """Those that succeeded, by their numbers."""
    return {number for number, each in futures.items() if not each.cancelled() and each.exception() is None}


def no_loop_is_left() -> None:
    """Wait until no thread runs an event loop."""

    def wait() -> None:
        while any(thread.name == "redpoll loop" for thread in threading.enumerate()):
            time.sleep(0.01)

    within(wait, "the thread of the event loop to end")


def run_script(scripts: Mapping[str, Script]) -> None:
    """Run the script that the command line names, with its seed."""
    _, name, seed = sys.argv
    # Finalizers are interrupted as well. Not by a function of Python's own, which would be too.
    sys.unraisablehook = id
    warnings.simplefilter("ignore")
    scripts[name](Storm(), random.Random(int(seed)))


def storm(module: str, script: str, seed: int) -> None:
    """Run a script of a module in a process of its own, and interrupt it; it has to end well, and to say nothing."""
    moments = random.Random(seed)
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-m", module, script, str(seed)],
        env=environment(),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "begin\n", process.stderr and process.stderr.read()
            end = time.monotonic() + _LASTS
            while time.monotonic() < end and process.poll() is None:
                for _ in range(moments.choice((1, 1, 2, 3, 10))):
                    process.send_signal(signal.SIGINT)
                    time.sleep(moments.choice(_GAPS) * moments.random())
                time.sleep(_PAUSE * moments.random())
            out, err = process.communicate(timeout=4 * _PATIENCE)
        except BaseException:
            process.kill()
            raise
    assert (process.returncode, err) == (0, ""), f"seed {seed}: {out}{err}"
