from __future__ import annotations

import inspect

from redpoll.node.peers import Peers
from redpoll.transport.connection import Keeper
from redpoll.transport.writing import WritingKeeper


def test_the_node_has_what_is_asked_of_it() -> None:
    """Whoever keeps connections, the node, has each method with the same arguments."""
    members = {**vars(WritingKeeper), **vars(Keeper)}
    asked = {name: call for name, call in members.items() if inspect.isfunction(call) and not name.startswith("_")}
    assert len(asked) == 10
    for name, call in asked.items():
        own = inspect.signature(getattr(Peers, name)).parameters
        assert list(own) == list(inspect.signature(call).parameters), name
