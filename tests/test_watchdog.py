"""What ends a test process that hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import watchdog

OPTIONS = ("-p", "no:redpoll", "-p", "no:cacheprovider", "-p", "tests.watchdog", "--timeout", "2")

#: Its fixture hangs when it has failed, which pytest-timeout does not see; with the lock held it would see nothing.
HANGS = """
import time
import pytest

@pytest.fixture
def hanging():
    yield
    time.sleep(150)

def test_once(hanging):
    assert False
"""


@pytest.mark.timeout(180)
def test_a_teardown_that_hangs_is_ended(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends, and says which line it was in."""
    pytester.makepyfile(test_hangs=HANGS)
    monkeypatch.setenv("PYTHONPATH", str(Path(watchdog.__file__).parents[1]))
    result = pytester.runpytest_subprocess(*OPTIONS, timeout=140)
    assert result.ret != 0
    assert any("in hanging" in line for line in result.errlines)


@pytest.mark.timeout(17)
def test_a_mark_is_the_limit(request: pytest.FixtureRequest) -> None:
    """A test that says how long it takes has that long."""
    assert watchdog.limit(request.node) == 17


def test_without_one_there_is_a_limit_for_all(request: pytest.FixtureRequest) -> None:
    """What the command line or pyproject.toml say."""
    config = request.config
    assert watchdog.limit(request.node) == float(config.getoption("timeout") or config.getini("timeout")) > 0
