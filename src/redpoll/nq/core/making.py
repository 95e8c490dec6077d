"""Makes the station below a communicator, of the modules of its protocol."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from redpoll.errors import ConfigError, UsageError
from redpoll.nq.core.client import ClientStation
from redpoll.nq.core.names import Protocol, Purpose
from redpoll.nq.core.nodes import config_of
from redpoll.nq.core.options import CommunicatorOptions
from redpoll.nq.core.server import ServerStation

if TYPE_CHECKING:
    from redpoll.nq.core.arrivals import Arrivals

__all__ = ["AnyStation", "checked", "make_station", "one_of"]

AnyStation = ServerStation | ClientStation
NameT = TypeVar("NameT", Protocol, Purpose)


def one_of(kind: type[NameT], value: NameT | str) -> NameT:
    """Return a member of an enum, given as itself or as its text.

    Raises:
        UsageError: There is no such member.
    """
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(repr(each.value) for each in kind)
        raise UsageError(f"{value!r} is no {kind.__name__.lower()}", f"there are {known}") from None


def checked(options: CommunicatorOptions | None) -> CommunicatorOptions:
    """Return the options; None is all defaults, with a random id.

    Raises:
        UsageError: The value is not a CommunicatorOptions.
    """
    if options is None:
        return CommunicatorOptions()
    if not isinstance(options, CommunicatorOptions):
        raise UsageError(f"options are CommunicatorOptions, not {type(options).__name__}")
    return options


def make_station(
    protocol: Protocol,
    purpose: Purpose,
    options: CommunicatorOptions,
    arrivals: Arrivals,
    tell: Callable[[Callable[[UUID], None], UUID], object],
) -> AnyStation:
    """Make the station of a communicator: its part on the event loop.

    Args:
        protocol: The transport.
        purpose: Which end.
        options: The options.
        arrivals: The queue of received messages.
        tell: Calls an event of the user with the id of a peer.

    Raises:
        ConfigError: Links would be plain off loopback, or a certificate is missing.
        UsageError: A library that the protocol needs is not installed.
    """
    module = import_module(f"redpoll.nq.{protocol}.carrier")
    server = purpose is Purpose.SERVER
    config = config_of(options, server=server, encrypts=not module.ENCRYPTS)

    def given_up(error: ConfigError) -> None:
        station.give_up(error)

    kind = ServerStation if server else ClientStation
    station = kind(options, config, module.make(options, server=server, given_up=given_up), arrivals, tell)
    return station
