"""A conformance suite for engines of the bus, for any engine by anybody.

A test module of three lines runs it::

    @pytest.mark.parametrize("behaviour", conformance.behaviours(), ids=str)
    def test_engine(behaviour):
        behaviour.run(conformance.Setting("nats://127.0.0.1"))

Each behaviour runs on an event loop of its own, with whatever pytest plugins are there. Those that an engine's capabilities
rule out are skipped, and say which it lacks. ``python -m redpoll.testing.conformance URL`` prints a table of what was seen.
"""

from redpoll.testing.conformance.frame import (
    Behaviour,
    NotCovered,
    Place,
    Recorder,
    Setting,
    behaviour,
    behaviours,
    observe,
    table,
)

__all__ = [
    "Behaviour",
    "NotCovered",
    "Place",
    "Recorder",
    "Setting",
    "behaviour",
    "behaviours",
    "observe",
    "table",
]
