from __future__ import annotations

import inspect

from redpoll.node.peers import Peers
from redpoll.wire.peer import Owner
from redpoll.wire.slots import LinkOwner
from tests.wire.support import Owned


def test_the_node_has_what_is_asked_of_it() -> None:
    """Owners of peers, the node and its stand-in in tests, have each method with the same arguments."""
    asked = {
        name: call
        for name, call in (vars(LinkOwner) | vars(Owner)).items()
        if inspect.isfunction(call) and not name.startswith("_")
    }
    assert asked.keys() == {"wake", "need_link", "on_announcement", "arm", "close"}
    for owner in (Peers, Owned):
        for name, call in asked.items():
            own = inspect.signature(getattr(owner, name)).parameters
            assert list(own) == list(inspect.signature(call).parameters), f"{owner.__name__}.{name}"
