"""What ends a test process that hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import watchdog

OPTIONS = ("-p", "no:redpoll", "-p", "no:cacheprovider", "-p", "tests.watchdog", "--reruns", "1", "--timeout", "2")

#: Its second try hangs, which pytest-timeout does not see; with the lock held it would not see the first either.
HANGS = """
import time

tries = []

def test_once():
    tries.append(1)
    assert len(tries) > 1
    time.sleep(50)
"""


def test_a_second_try_that_hangs_is_ended(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends, and says which line it was in."""
    pytester.makepyfile(test_hangs=HANGS)
    monkeypatch.setenv("PYTHONPATH", str(Path(watchdog.__file__).parents[1]))
    result = pytester.runpytest_subprocess(*OPTIONS, timeout=45)
    assert result.ret != 0
    assert any("in test_once" in line for line in result.errlines)


@pytest.mark.timeout(17)
def test_a_mark_is_the_limit(request: pytest.FixtureRequest) -> None:
    """A test that says how long it takes has that long."""
    assert watchdog.limit(request.node) == 17


def test_without_one_there_is_a_limit_for_all(request: pytest.FixtureRequest) -> None:
    """What the command line or pyproject.toml say."""
    config = request.config
    assert watchdog.limit(request.node) == float(config.getoption("timeout") or config.getini("timeout")) > 0
