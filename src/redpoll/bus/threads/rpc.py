"""Calls, for threads."""

from __future__ import annotations

from typing import Any

from redpoll.blocking.iteration import Iteration
from redpoll.blocking.verbs import Attribute, Face, call, maker, verb
from redpoll.bus.rpc.caller import CallStats, Settings
from redpoll.bus.rpc.client import Client, typed_client
from redpoll.bus.rpc.rpc import Rpc, RpcOptions
from redpoll.bus.rpc.server import Server
from redpoll.bus.rpc.target import Target
from redpoll.bus.threads.home import Home, Running

__all__ = ["BlockingClient", "BlockingRpc", "BlockingServer"]


class BlockingServer(Running[Server]):
    """Serves a target: see `redpoll.bus.rpc.Server`."""

    target = Attribute[Target]()
    """Its target."""

    start = verb(Server.start)
    stop = verb(Server.stop)
    wait = verb(Server.wait)
    reset = verb(Server.reset)


class BlockingClient(Face[Client]):
    """Calls the methods of a target: ``calculator.add(a=1, b=2)``, ``calculator.add.future(a=1, b=2)``.

    See `redpoll.bus.rpc.Client`.
    """

    _home: Home

    target = Attribute[Target]()
    """The target."""

    settings = Attribute[Settings]()
    """The settings of its calls."""

    def prepare(self, **changes: Any) -> BlockingClient:
        """Return a client with other settings, or for another target. See `redpoll.bus.rpc.Client.prepare`."""
        return BlockingClient(self._home, self._target.prepare(**changes))

    can_send_version = maker(Client.can_send_version, lambda _, can: can)
    call = verb(Client.call)
    cast = verb(Client.cast)
    fanout = verb(Client.fanout)

    def stream(self, method: str, /, **args: Any) -> Iteration[Any]:
        """Call a method that streams. See `redpoll.bus.rpc.Client.stream`."""
        return self._home.iterate(call(self._home, lambda: self._target.stream(method, **args)))

    def __getattr__(self, name: str) -> Any:
        """A method of the target."""
        if name.startswith("_"):
            raise AttributeError(name)
        return _Method(self, name)


class _Method:
    """A method of a target."""

    def __init__(self, client: BlockingClient, name: str) -> None:
        self._call = client.call
        self._name = name

    def __call__(self, **args: Any) -> Any:
        return self._call(self._name, **args)

    def future(self, **args: Any) -> Any:
        """Begin it, without waiting."""
        return self._call.future(self._name, **args)


class BlockingRpc(Face[Rpc]):
    """Calls, for both their ends: see `redpoll.bus.rpc.Rpc`."""

    _home: Home

    options = Attribute[RpcOptions]()
    """The options of calls."""

    stats = Attribute[dict[tuple[str, str], CallStats]]()
    """The statistics, by title of the target and name of the method."""

    serve = maker(Rpc.serve, BlockingServer)
    call = verb(Rpc.call)
    cast = verb(Rpc.cast)
    fanout = verb(Rpc.fanout)
    stream = maker(Rpc.stream, lambda home, stream: home.iterate(stream), on_loop=True)

    def client(self, target: Target | str, interface: type[Any] | None = None, /, **settings: Any) -> Any:
        """A client: ``calculator = bus.rpc.client("calculator", timeout=3); calculator.add(a=1, b=2)``.

        With a class its asynchronous methods are those of the client, with their signatures; they wait, and streams are
        iterators. See `redpoll.bus.rpc.Rpc.client`.
        """
        client: Any = BlockingClient(self._home, self._target.client(target, **settings))
        return client if interface is None else typed_client(client, interface)
