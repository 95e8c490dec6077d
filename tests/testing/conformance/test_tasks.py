"""Tasks in memory do what they do on every engine."""

from __future__ import annotations

import pytest

from redpoll.testing import conformance


@pytest.mark.parametrize("behaviour", conformance.behaviours("tasks"), ids=str)
def test_memory(behaviour: conformance.Behaviour) -> None:
    """Each behaviour holds in memory, in virtual time."""
    behaviour.run(conformance.Setting("memory://"))


@pytest.mark.parametrize("behaviour", conformance.behaviours("tasks"), ids=str)
def test_memory_in_threads(behaviour: conformance.Behaviour) -> None:
    """Each behaviour holds for `redpoll.blocking.connect` as well."""
    behaviour.run(conformance.Setting("memory://", face="blocking"))
