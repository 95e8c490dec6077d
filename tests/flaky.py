"""What is known to fail now and then: `@pytest.mark.flaky(reason="...", until="2027-01-31")`.

A marked test that fails is run once more, alone, when all others have ended. The summary names it, whatever comes of that.
More than three in a run fail it, and so does a mark whose day has passed. The protocol, the promise and the models of
the state machines may not be marked: there is nothing in them that may fail now and then.
"""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

#: Maximum tests that may be run again, per run.
LIMIT = 3

#: Seconds that the second try of a test may take.
PATIENCE = 600.0

#: Folders of tests/ whose tests are never run again; any folder or file of a model is another.
NEVER = ("wire", "promise")

#: Set where a test is run again: a failure is one.
ALONE = "REDPOLL_TEST_ALONE"

TESTS = Path(__file__).parent


@dataclass(slots=True)
class Failure:
    """A marked test that failed."""

    name: str
    reason: str
    text: str
    passed_alone: bool = False


def is_never_run_again(path: Path) -> bool:
    """Return True for a file whose tests may not be marked."""
    return "model" in {path.parent.name, path.stem.removeprefix("test_")} or any(
        path.is_relative_to(TESTS / name) for name in NEVER
    )


def read_mark(marker: pytest.Mark) -> tuple[str, dt.date]:
    """Return the reason and the last day of a mark; raise ValueError if it does not say both."""
    given = dict(marker.kwargs)
    reason, until = given.pop("reason", None), given.pop("until", None)
    if marker.args or given or not isinstance(reason, str) or not reason.strip() or not isinstance(until, str):
        raise ValueError(f'flaky(*{marker.args}, **{marker.kwargs}): expected reason="..." and until="YYYY-MM-DD"')
    return reason, dt.date.fromisoformat(until)


def today() -> dt.date:
    """Return the day by which marks are judged."""
    return dt.datetime.now(dt.UTC).date()


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark, and count where results are counted: not in a worker."""
    config.addinivalue_line("markers", "flaky(reason, until): fails now and then; run again alone, until that day")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(SecondTries(config), "flaky-second-tries")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse marks that do not say what they must, and those where nothing may be marked."""
    wrong = []
    for item in items:
        marker = item.get_closest_marker("flaky")
        if marker is None:
            continue
        if is_never_run_again(item.path):
            wrong.append(f"{item.nodeid}: tests of the protocol, the promise and models are never run again")
        try:
            read_mark(marker)
        except ValueError as error:
            wrong.append(f"{item.nodeid}: {error}")
    if wrong:
        raise pytest.UsageError("\n".join(wrong))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test whose mark is out of date."""
    marker = item.get_closest_marker("flaky")
    if marker is not None and read_mark(marker)[1] < today():
        pytest.fail(f"flaky until {marker.kwargs['until']} ({marker.kwargs['reason']}): mend the test", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Put the failure of a marked test aside."""
    report = yield
    marker = item.get_closest_marker("flaky")
    if marker is not None and report.failed:
        reason, until = read_mark(marker)
        if until >= today() and ALONE not in os.environ:
            report.outcome = "flaky"
            report.flaky_reason = reason
    return report


def pytest_report_teststatus(report: Any) -> tuple[str, str, str] | None:
    """Show what was put aside as what it is."""
    return ("flaky", "Y", "FLAKY") if report.outcome == "flaky" else None


class SecondTries:
    """Run again, alone, what was put aside, and report it; too many are failures without a second try."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._failures: dict[str, Failure] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note what was put aside; a test may fail in its setup, itself and in its teardown."""
        if report.outcome == "flaky":
            self._failures.setdefault(report.nodeid, Failure(report.nodeid, report.flaky_reason, report.longreprtext))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Try again what was put aside, and fail the run if that fails or if there is too much of it."""
        if len(self._failures) <= LIMIT:
            for failure in self._failures.values():
                failure.passed_alone = self._passes_alone(failure.name)
        failed = [each for each in self._failures.values() if not each.passed_alone]
        if failed:
            session.testsfailed += len(failed)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _passes_alone(self, name: str) -> bool:
        command = [sys.executable, "-m", "pytest", *self._options(), name]
        try:
            done = subprocess.run(
                command,
                cwd=self._config.rootpath,
                env=os.environ | {ALONE: "1"},
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        if done.returncode != 0:
            self._failures[name].text += f"\n\nalone:\n{done.stdout[-8_000:]}{done.stderr[-2_000:]}"
        return done.returncode == 0

    def _options(self) -> list[str]:
        """Options of the second try: those of this run on which the test depends."""
        config = self._config
        given = ["-q", "-p", "no:cacheprovider", "-m", ""]
        if config.inipath is not None:
            given += ["-c", str(config.inipath), f"--rootdir={config.rootpath}"]
        if config.getoption("asyncio_debug", None):
            given.append("--asyncio-debug")
        return given

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name each, with its reason and what came of it."""
        if not self._failures:
            return
        terminalreporter.section("flaky tests")
        for failure in self._failures.values():
            word = "passed alone" if failure.passed_alone else "failed"
            if not failure.passed_alone:
                terminalreporter.line(failure.text)
            terminalreporter.line(f"FLAKY {failure.name} - {word}; known: {failure.reason}")
        if len(self._failures) > LIMIT:
            terminalreporter.line(f"{len(self._failures)} flaky tests failed: more than {LIMIT} fail the run", red=True)
