"""Ends a test process in which a test hangs, whatever it hangs in, and says where.

pytest-timeout does so for most: but its timer needs the interpreter's lock, which code in C may hold for ever, it is not
set again for the teardown of a test that failed, and in a worker of pytest-xdist nobody sees where the threads were.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

#: Seconds that this is earlier than pytest-timeout.
LEAD = 1.0


_stderr = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Keep standard error as it is before tests' output is captured."""
    config.stash[_stderr] = os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close it."""
    os.close(config.stash[_stderr])


def limit(item: pytest.Item) -> float:
    """Seconds that a test has, as pytest-timeout reads them: its own mark, the command line, pyproject.toml."""
    marker = item.get_closest_marker("timeout")
    if marker is not None and marker.args:
        return float(marker.args[0])
    return float(item.config.getoption("timeout", None) or item.config.getini("timeout") or 0)


@contextmanager
def _watched(item: pytest.Item) -> Iterator[None]:
    seconds = limit(item)
    if seconds:
        faulthandler.dump_traceback_later(max(seconds - LEAD, LEAD), exit=True, file=item.config.stash[_stderr])
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Watch the fixtures."""
    with _watched(item):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Watch the test."""
    with _watched(item):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Watch the end of the fixtures, of those of a module too."""
    with _watched(item):
        yield
