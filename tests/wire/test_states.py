from __future__ import annotations

from itertools import product

import pytest

from redpoll.errors import ProtocolError
from redpoll.wire.states import TRANSITIONS, Event, LinkState
from tests.wire.support import bare_link

STATES = {
    LinkState.HANDSHAKE: (False, False),
    LinkState.OPEN: (True, True),
    LinkState.LEAVING: (False, False),
    LinkState.LEFT: (False, True),
    LinkState.PARTING: (False, False),
    LinkState.CLOSED: (False, False),
}


@pytest.mark.parametrize(("state", "event"), list(product(LinkState, Event)))
def test_every_step(state: LinkState, event: Event) -> None:
    """A step is in the table or a protocol error that names both; a state determines what the link may carry."""
    link = bare_link()
    link.state = state
    following = TRANSITIONS.get((state, event))
    if following is None:
        text = f"{event.name.lower()} is illegal in link state {state.name.lower()}"
        with pytest.raises(ProtocolError, match=text):
            link.step(event)
        assert link.state is state
    else:
        link.step(event)
        assert link.state is following
        assert (link.sending, link.accepting) == STATES[following]


def test_any_link_can_be_lost() -> None:
    """Every state has the step that ends it."""
    assert {state for state, event in TRANSITIONS if event is Event.LOST} == set(LinkState)
