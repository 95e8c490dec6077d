"""Break the library one line at a time and say which tests notice: `python -m tests.mutations.run [NAME …]`.

Each patch beside this file changes one line of src/redpoll; its first line says what is broken by that, so that the same
fault can be made again when the code around it is another. A copy of the checkout gets one patch. The tests of the
folder run, those of the module first, up to the first failure; where nothing fails, all tests run; with `--night` then
the long ones. A failure counts if it comes again when its test, or its file, runs alone, and does not without the patch.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SOURCE = Path("src", "redpoll")

#: What of a checkout is not copied.
LEFT_OUT = (
    ".git",
    ".venv*",
    ".nox",
    ".cache",
    ".fuzz",
    ".hypothesis",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    "site",
)

#: Maximum duration of one run of pytest, in seconds; a longer one hangs, and has found the mutation with that.
LIMIT = {"folder": 1800.0, "push": 3600.0, "night": 6 * 3600.0}

#: Those that run; each leads a group of its own, which Ctrl-C does not reach.
_running: set[subprocess.Popen[str]] = set()
_stopping = threading.Event()

_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?(?:\[.*?\])?)(?: - .*)?$", re.MULTILINE)


class StaleError(Exception):
    """The patch does not fit the file any more."""


@dataclass(frozen=True)
class Mutation:
    """One line to change.

    Attributes:
        name: The patch's, without its suffix.
        meaning: What is broken by it, in words.
        path: The file, relative to the checkout.
        before: The line with those around it.
        after: The same with the line changed.
    """

    name: str
    meaning: str
    path: Path
    before: str
    after: str

    @classmethod
    def read(cls, patch: Path) -> Mutation:
        """Read a unified diff of one hunk, behind a comment."""
        first, _, named, _, *hunk = patch.read_text().splitlines(keepends=True)
        return cls(
            patch.stem,
            first.removeprefix("#").strip(),
            Path(named.removeprefix("+++ b/").rstrip()),
            "".join(line[1:] for line in hunk if line[0] in " -"),
            "".join(line[1:] for line in hunk if line[0] in " +"),
        )

    def applied(self, text: str) -> str:
        """Return the text of the file with the line changed, wherever it stands now.

        Raises:
            StaleError: It is not there, or more than once.
        """
        count = text.count(self.before)
        if count != 1:
            raise StaleError(f"{self.name}: {self.path} has the lines {count} times")
        return text.replace(self.before, self.after)

    @property
    def folder(self) -> Path:
        """The tests of the part of the library that the line is in."""
        return Path("tests", self.path.relative_to(SOURCE).parts[0])

    @property
    def module(self) -> Path:
        """The tests of its module, where there are any of that name."""
        inner = self.path.relative_to(SOURCE)
        return Path("tests", inner.parent, f"test_{inner.name}")


def catalogue() -> dict[str, Mutation]:
    """Return all mutations, by name."""
    return {patch.stem: Mutation.read(patch) for patch in sorted(HERE.glob("*.patch"))}


@dataclass(frozen=True)
class Verdict:
    """Which tests found a mutation.

    Attributes:
        name: The mutation's.
        stage: `folder`, `push`, `night`, `nobody`; or `stale`, where the patch does not apply.
        test: The first test that failed.
        seconds: Duration, the copying included.
        unsteady: Tests that failed, and then not when run again, or without the mutation too.
    """

    name: str
    stage: str
    test: str
    seconds: float
    unsteady: Sequence[str] = ()


@contextmanager
def _copy(mutation: Mutation) -> Iterator[Path]:
    """Copy the checkout to a temporary folder, and change the line there."""
    with tempfile.TemporaryDirectory(prefix="redpoll-mutation-") as folder:
        copy = Path(folder, "redpoll")
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
        changed = copy / mutation.path
        changed.write_text(mutation.applied(changed.read_text()))
        yield copy


def _pytest(checkout: Path, arguments: Sequence[str], limit: float, profile: str) -> str | None:
    """Run pytest in a checkout up to the first failure; return the test that failed, or None."""
    if _stopping.is_set():
        return "stopped"
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no", "-rfE", *arguments]
    process = subprocess.Popen(
        command,
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(checkout / "src"), "REDPOLL_TEST_PROFILE": profile},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    _running.add(process)
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        return f"no end within {limit:g} s"
    finally:
        _running.discard(process)
        _kill(process)  # with what a test left behind
        process.wait()
    if process.returncode == 0:
        return None
    failed = _FAILED.search(output)
    return failed[1] if failed else f"pytest ended with {process.returncode}: {' '.join(output.split())[-200:]}"


def _kill(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


@dataclass(frozen=True)
class Stage:
    """One run of pytest.

    Attributes:
        name: `folder`, `push` or `night`.
        where: Folders and files.
        options: pytest's.
        profile: Hypothesis' settings; see tests/conftest.py.
    """

    name: str
    where: list[str]
    options: tuple[str, ...] = ()
    profile: str = "ci"

    def first_failure(self, copy: Path, workers: int, unsteady: list[str]) -> str | None:
        """Return the first test that fails because of the mutation; add those that fail for something else."""
        limit = LIMIT[self.name]
        while True:
            skipped = [f"--deselect={test}" for test in unsteady]
            failed = _pytest(copy, [*self.where, *self.options, *skipped, "-n", str(workers)], limit, self.profile)
            if failed is None or "::" not in failed:
                return failed
            # What one test leaves behind another may meet: then its whole file fails, and it alone does not.
            # In a worker, which ends at once: a thread that a test left behind keeps the process of pytest itself.
            for again in (failed, failed.partition("::")[0]):
                alone = [again, *self.options, "-n", "1"]
                found = _pytest(copy, alone, limit, self.profile)
                if found is not None and _pytest(ROOT, alone, limit, self.profile) is None:
                    return found
            unsteady.append(failed)


def _stages(mutation: Mutation, last: str) -> Iterator[Stage]:
    """Yield what is run, one after the other; nothing runs again that found nothing."""
    folder, module = str(mutation.folder), str(mutation.module)
    if (ROOT / module).exists():
        yield Stage("folder", [module])
    yield Stage("folder", [folder, f"--ignore={module}"])
    # In a copy that is changed the patch does not apply any more, which is no news.
    everything = ["tests", "--ignore=tests/mutations"]
    if last != "folder":
        yield Stage("push", [*everything, f"--ignore={folder}"])
    if last == "night":
        yield Stage("night", everything, ("-m", "not interop", "--timeout", "900"), "nightly")


def look(mutation: Mutation, last: str, workers: int) -> Verdict:
    """Find the first test that notices a mutation."""
    began = time.monotonic()
    unsteady: list[str] = []
    name, test = "nobody", ""
    try:
        with _copy(mutation) as copy:
            for stage in _stages(mutation, last):
                failed = stage.first_failure(copy, workers, unsteady)
                if failed is not None:
                    name, test = stage.name, failed
                    break
    except StaleError as error:
        name, test = "stale", str(error)
    return Verdict(mutation.name, name, test, time.monotonic() - began, unsteady)


def _row(verdict: Verdict) -> str:
    unsteady = "".join(f"\n{'':42}{test} failed for something else" for test in verdict.unsteady)
    return f"{verdict.name:34} {verdict.stage:7}{verdict.seconds:6.0f} s  {verdict.test}{unsteady}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; 1 if a patch does not apply, or if the night found a mutation neither."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutations.run", description="Which tests find each mutation?"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutations to run; all, if none is named")
    parser.add_argument("--jobs", type=int, default=1, help="mutations at the same time (default: 1)")
    until = parser.add_mutually_exclusive_group()
    until.add_argument(
        "--folder", dest="last", action="store_const", const="folder", help="run the folder's tests alone"
    )
    until.add_argument("--night", dest="last", action="store_const", const="night", help="run the long tests as well")
    parser.set_defaults(last="push")
    options = parser.parse_args(arguments)
    known = catalogue()
    if unknown := sorted(set(options.names) - set(known)):
        parser.error(f"no such mutation: {', '.join(unknown)}")
    workers = max(2, (os.cpu_count() or 1) // options.jobs)
    verdicts: list[Verdict] = []
    pool = ThreadPoolExecutor(options.jobs)
    try:
        chosen = [known[name] for name in options.names or known]
        for verdict in pool.map(lambda each: look(each, options.last, workers), chosen):
            verdicts.append(verdict)
            print(_row(verdict), flush=True)
    except KeyboardInterrupt:
        _stopping.set()
        for process in list(_running):
            _kill(process)
        return 130
    finally:
        pool.shutdown(cancel_futures=True)
    stages = [verdict.stage for verdict in verdicts]
    print(", ".join(f"{stage}: {stages.count(stage)}" for stage in dict.fromkeys(stages)))
    return int("stale" in stages or (options.last == "night" and "nobody" in stages))


if __name__ == "__main__":
    sys.exit(main())
