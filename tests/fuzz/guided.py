"""Fuzzing by what an input reaches, with atheris, where that is installed."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NoReturn

from tests.fuzz.catalogue import CORPUS, load
from tests.fuzz.mutate import MAX_SIZE
from tests.fuzz.watch import InvariantError, LeakError, Watch

__all__ = ["available", "run"]


def available() -> bool:
    """Whether atheris is installed."""
    return importlib.util.find_spec("atheris") is not None


def run(name: str, seed: int, runs: int, seconds: float, crashes: Path, corpus: Path | None) -> NoReturn:
    """Fuzz a target, in a process that does nothing else: it ends with this.

    Args:
        name: The target.
        seed: Of all that is drawn.
        runs: Inputs after which it ends.
        seconds: The same in time.
        crashes: Where inputs that break it are written.
        corpus: A folder with further inputs, to which those are added that reach something new; None keeps none.
    """
    import atheris

    with atheris.instrument_imports(include=["redpoll"]):
        target = load(name)
    watch = Watch(name, target.run, crashes, native=True)

    def run_one(data: bytes) -> None:
        try:
            watch(data)
            if watch.count >= runs or watch.seconds >= seconds:
                watch.close()
                print(watch)
                _end(0)
        except (InvariantError, LeakError) as error:
            traceback.print_exception(error)
            _end(1)

    crashes.mkdir(parents=True, exist_ok=True)
    found = Path(tempfile.mkdtemp()) if corpus is None else corpus
    words = found.parent / f"{found.name}.words"
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in target.words if len(word) <= 64))
    options = [f"-seed={seed % (1 << 31) or 1}", f"-max_len={MAX_SIZE}", f"-dict={words}", "-rss_limit_mb=4096"]
    options += [f"-artifact_prefix={crashes}/", "-print_final_stats=0", "-verbosity=0", str(found)]
    atheris.Setup([sys.argv[0], *options, str(CORPUS / name)], run_one)
    atheris.Fuzz()
    raise AssertionError("atheris came back")


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


def _end(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    # The library underneath has no other way to be told to stop.
    os._exit(code)
