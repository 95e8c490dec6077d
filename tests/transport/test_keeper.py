from __future__ import annotations

import inspect

from redpoll.node.peers import Peers
from redpoll.transport.connection import Keeper


def test_the_node_has_what_is_asked_of_it() -> None:
    """Whoever keeps connections, the node, has each method with the same arguments."""
    asked = {name: call for name, call in vars(Keeper).items() if inspect.isfunction(call) and not name.startswith("_")}
    assert len(asked) == 10
    for name, call in asked.items():
        own = inspect.signature(getattr(Peers, name)).parameters
        assert list(own) == list(inspect.signature(call).parameters), name
