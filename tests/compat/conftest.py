"""Programs with other people's libraries, in the environment of `nox -s compat`; elsewhere there are no such tests."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from redpoll.bus.engines.hub.opening import open_store
from tests.bus.engines.hub.support import running

#: What each file of tests needs.
_NEEDS = {
    "aiida": "aiida",
    "kiwipy": "kiwipy",
    "test_celery.py": "celery",
    "test_oslo.py": "oslo_messaging",
    "test_taskiq.py": "taskiq",
}

collect_ignore = [name for name, library in _NEEDS.items() if find_spec(library) is None]

# What they say about themselves when they are imported is no matter of these tests.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for name, library in _NEEDS.items():
        if name not in collect_ignore:
            import_module(library)


@pytest.fixture
def hub_url(tmp_path: Path) -> Iterator[str]:
    """The URL of a hub of the test's own."""
    with running(open_store(tmp_path / "hub", reserve=65_536)) as hub:
        yield hub.url
