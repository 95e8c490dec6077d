"""What the tests of nodes and TLS share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from redpoll import TLS, Message, Node, NotSent, TLSError
from tests.node.support import make, within

Make = Callable[..., TLS]


def encrypted(handler: Any = None, *, tls: Any, **options: Any) -> Node[Any]:
    """A node that encrypts on loopback too."""
    return make(handler, encryption=True, tls=tls, **options)


def is_encrypted(node: Node[Any]) -> bool:
    """Whether the only link of a node is."""
    (link,) = node._peers.connections
    assert link.transport is not None
    return link.transport.get_extra_info("ssl_object") is not None


async def failure(client: Node[Any], address: Any, **options: Any) -> TLSError:
    """Why nothing can be sent there: told at once, far from any timeout, by send, ready and check."""
    errors = []
    with pytest.raises(NotSent) as caught:
        await within(client.send(Message(b"x", address), timeout=None, **options))
    errors.append(caught.value.__cause__)
    for attempt in (client.ready, client.check):
        with pytest.raises(TLSError) as again:
            await within(attempt(address, timeout=None))
        errors.append(again.value)
    assert isinstance(errors[0], TLSError)
    assert len({str(error) for error in errors}) == 1
    assert errors[0].hint
    assert errors[0].address
    return errors[0]
