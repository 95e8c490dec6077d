"""The memory engine does what every engine does."""

from __future__ import annotations

import pytest

from redpoll.testing import conformance


@pytest.mark.parametrize("behaviour", conformance.behaviours("engine"), ids=str)
def test_memory(behaviour: conformance.Behaviour) -> None:
    """Each behaviour holds in memory, in virtual time."""
    behaviour.run(conformance.Setting("memory://"))
