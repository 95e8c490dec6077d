"""What a node says of itself, and what it refuses before it does anything."""

from __future__ import annotations

from typing import Any

import pytest

from redpoll import Address, Closed, Config, ConfigError, Message, Node, UsageError
from tests.node.support import make, to, within


def test_options_go_before_the_config() -> None:
    """Keyword options are fields of the Config, and override those of a given one."""
    node: Node[Any] = Node(None, Config(slots=3, window=7), slots=5)
    assert (node.config.slots, node.config.window) == (5, 7)


def test_an_unknown_option_is_named_with_the_nearest() -> None:
    """A misspelt option is an error that names it and says what was meant."""
    with pytest.raises(ConfigError, match=r"slot.*did you mean 'slots'"):
        Node(slot=1)  # type: ignore[call-arg]


def test_a_handler_is_callable() -> None:
    """Something that cannot be called is refused where it is given."""
    with pytest.raises(UsageError, match="a handler must be a function, not int"):
        Node(3)  # type: ignore[arg-type]


def test_an_identity_can_be_given() -> None:
    """A node has the identity it was given, and else a random one of its own."""
    given: Node[Any] = Node(identity=b"0123456789abcdef")
    assert given.identity == b"0123456789abcdef"
    first: Node[Any] = Node()
    second: Node[Any] = Node()
    assert len(first.identity) == 16
    assert first.identity != second.identity


def test_before_the_start_there_is_nothing() -> None:
    """A node that was not started listens nowhere, knows nobody, has counted nothing, and cannot send."""
    node: Node[Any] = Node()
    assert (node.listening, node.peers) == ((), ())
    assert (node.stats().sent, node.stats().connections) == (0, 0)
    with pytest.raises(Closed):
        node.send(Message(b"x", "127.0.0.1:1"))
    with pytest.raises(Closed):
        _ = node.address


@pytest.mark.asyncio
async def test_a_public_port_is_in_the_address() -> None:
    """The address that others can dial has the public port, where it differs from the one listened at."""
    async with make(public_port=4321) as node:
        assert node.address.port == 4321
        assert node.listening[0].port != 4321


@pytest.mark.asyncio
async def test_any_interface_is_dialled_by_loopback() -> None:
    """A node that listens at all interfaces says an address that can be dialled from this machine."""
    async with make(host="0.0.0.0", encryption=False) as node:
        assert node.address == Address("tcp", "127.0.0.1", node.listening[0].port)


@pytest.mark.asyncio
async def test_a_node_tells_who_it_knows() -> None:
    """`peers` tells address, identity and state of each peer; `stats` counts by peer and in all."""
    async with make(lambda message: None) as server, make() as client:
        await within(client.send(to(server, b"hello")))
        (peer,) = client.peers
        assert peer == (server.address, server.identity, True, True, None, False)
        stats = client.stats()
        assert (stats.sent, stats.connections, len(stats.peers)) == (1, 1, 1)


@pytest.mark.asyncio
async def test_repr_says_identity_state_and_place() -> None:
    """The representation of a node helps to tell it from others in a log."""
    async with make() as node:
        text = repr(node)
        assert node.identity.hex()[:8] in text
        assert "running" in text
        assert str(node.address) in text
    assert "stopped" in repr(node)


@pytest.mark.asyncio
async def test_a_batch_has_at_least_one_message() -> None:
    """`batches` refuses a size that no batch can have."""
    async with make() as node:
        with pytest.raises(UsageError, match="max=0 is below the minimum of 1"):
            node.batches(max=0)


@pytest.mark.asyncio
async def test_a_node_with_a_handler_is_not_pulled_from() -> None:
    """Every way of pulling from a node that has a handler is a usage error with the remedy."""
    async with make(lambda message: None) as node:
        for pull in (node.take, node.batches, node.__aiter__):
            with pytest.raises(UsageError, match="has a handler"):
                pull()
        with pytest.raises(UsageError, match="has a handler"):
            await node.receive(timeout=0.1)


@pytest.mark.parametrize("config", ["slots=1", 7, {"slots": 1}])
def test_a_config_is_a_config(config: Any) -> None:
    """Something else in the place of the Config is refused, with the way to give options."""
    with pytest.raises(UsageError) as caught:
        Node(None, config)
    assert str(caught.value) == f"config must be a Config, not {type(config).__name__} (pass options as keywords)"


def test_a_config_in_the_handlers_place_is_refused() -> None:
    """A Config that is given first is no handler."""
    with pytest.raises(UsageError) as caught:
        Node(Config())  # type: ignore[arg-type]
    assert str(caught.value) == "a handler must be a function, not Config (pass options as keywords)"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("drain", "text"),
    [
        ("5", "drain must be a number of seconds or None, not str"),
        (-1, "drain=-1 is out of range: 0 to 31536000 seconds (None is no limit)"),
    ],
)
async def test_draining_takes_a_time(drain: Any, text: str) -> None:
    """A `drain` that is no time is refused, and the node goes on."""
    async with make(lambda message: None) as server, make() as client:
        with pytest.raises(UsageError) as caught:
            await server.stop(drain)
        assert str(caught.value) == text
        await within(client.send(to(server)))


@pytest.mark.asyncio
@pytest.mark.parametrize("address", ["", "nowhere", 7, None, b"127.0.0.1:1"])
async def test_addresses_are_checked_where_they_are_given(address: Any) -> None:
    """`ready` and `check` refuse what is no address."""
    async with make() as node:
        for call in (node.ready, node.check):
            with pytest.raises(UsageError):
                await call(address)
        assert node.peers == ()
