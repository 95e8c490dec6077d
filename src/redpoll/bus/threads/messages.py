"""Calls, broadcasts and notifications, for threads."""

from __future__ import annotations

from typing import Any, Self, TypeVar, Unpack, overload

from redpoll.blocking.iteration import Iteration
from redpoll.blocking.verbs import Attribute, Face, call, maker, verb
from redpoll.bus.broadcast import Broadcast, Broadcasts, BroadcastSubscription
from redpoll.bus.notifications.listener import Listener
from redpoll.bus.notifications.notifications import Notifications
from redpoll.bus.notifications.notifier import Notifier, NotifierLike, Priorities, Route, RoutingNotifier
from redpoll.bus.notifications.records import NotificationOptions, NotificationStats, Priority
from redpoll.bus.rpc.caller import CallStats, Settings
from redpoll.bus.rpc.client import Client, ClientOptions, keywords_only, typed_client
from redpoll.bus.rpc.rpc import Rpc, RpcOptions
from redpoll.bus.rpc.server import Server
from redpoll.bus.rpc.target import Target
from redpoll.bus.service import Service
from redpoll.bus.threads.resident import BusResident, Running
from redpoll.checks import is_async
from redpoll.errors import UsageError

__all__ = [
    "BlockingBroadcasts",
    "BlockingClient",
    "BlockingListener",
    "BlockingNotifications",
    "BlockingNotifier",
    "BlockingRoutingNotifier",
    "BlockingRpc",
    "BlockingServer",
    "BlockingSubscription",
]

PrioritiesT = TypeVar("PrioritiesT", bound=Priorities)
ServiceT = TypeVar("ServiceT", Server, Listener)


class _Serving(Running[ServiceT]):
    """A server or a listener."""

    start = verb(Service.start)
    stop = verb(Service.stop)
    wait = verb(Service.wait)
    reset = verb(Service.reset)


class BlockingServer(_Serving[Server]):
    """Serves a target: see `redpoll.bus.rpc.Server`."""

    target = Attribute[Target]()
    """Its target."""


class BlockingClient(Face[Client]):
    """Calls the methods of a target: ``calculator.add(a=1, b=2)``, ``calculator.add.future(a=1, b=2)``.

    See `redpoll.bus.rpc.Client`.
    """

    _home: BusResident

    target = Attribute[Target]()
    """The target."""

    settings = Attribute[Settings]()
    """The settings of its calls."""

    def prepare(self, **changes: Unpack[ClientOptions]) -> BlockingClient:
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

    def __call__(self, *wrong: Any, **args: Any) -> Any:
        if wrong:
            raise keywords_only(self._name)
        return self._call(self._name, **args)

    def future(self, **args: Any) -> Any:
        """Begin it, without waiting."""
        return self._call.future(self._name, **args)


class BlockingRpc(Face[Rpc]):
    """Calls, for both their ends: see `redpoll.bus.rpc.Rpc`."""

    _home: BusResident

    options = Attribute[RpcOptions]()
    """The options of calls."""

    stats = Attribute[dict[tuple[str, str], CallStats]]()
    """The statistics, by title of the target and name of the method."""

    serve = maker(Rpc.serve, BlockingServer)
    call = verb(Rpc.call)
    cast = verb(Rpc.cast)
    fanout = verb(Rpc.fanout)
    stream = maker(Rpc.stream, lambda home, stream: home.iterate(stream), on_loop=True)

    @overload
    def client(self, target: Target | str, /, **settings: Unpack[ClientOptions]) -> BlockingClient: ...

    @overload
    def client(self, target: Target | str, interface: type[Any], /, **settings: Unpack[ClientOptions]) -> Any: ...

    def client(
        self, target: Target | str, interface: type[Any] | None = None, /, **settings: Unpack[ClientOptions]
    ) -> Any:
        """A client: ``calculator = bus.rpc.client("calculator", timeout=3); calculator.add(a=1, b=2)``.

        With a class its asynchronous methods are those of the client, with their signatures; they wait, and streams are
        iterators. See `redpoll.bus.rpc.Rpc.client`.
        """
        client: Any = BlockingClient(self._home, self._target.client(target, **settings))
        return client if interface is None else typed_client(client, interface)


class BlockingSubscription(Running[BroadcastSubscription]):
    """Takes broadcasts while it is open: see `redpoll.bus.BroadcastSubscription`.

    It is iterated by any number of threads, each broadcast goes to one of them.
    """

    def __init__(self, home: BusResident, target: BroadcastSubscription) -> None:
        super().__init__(home, target)
        self._iteration: Iteration[Broadcast] | None = None

    delivered = Attribute[int]()
    """Broadcasts that were handed over."""

    failed = Attribute[int]()
    """Broadcasts that the callback failed with, or that could not be read."""

    dropped = Attribute[int]()
    """Broadcasts that were lost here because they were taken too slowly."""

    def start(self) -> Self:
        """Begin to take broadcasts. See `redpoll.bus.BroadcastSubscription.start`."""
        return self.__enter__()

    def __iter__(self) -> Self:
        """Return itself; there is one iteration."""
        return self

    def __next__(self) -> Broadcast:
        """Wait for the next broadcast; Ctrl-C loses none."""
        if self._iteration is None:
            self._iteration = self._home.iterate(self._target)
        # Not by `next`, at whose end Ctrl-C may come in.
        return self._iteration.__next__()


def _subscription(home: Any, made: BroadcastSubscription) -> BlockingSubscription:
    callback = made.callback
    if callback is not None and not is_async(callback):
        made.callback = home.in_thread(callback)
    return BlockingSubscription(home, made)


class BlockingBroadcasts(Face[Broadcasts]):
    """Sends broadcasts, and lets them be received: see `redpoll.bus.Broadcasts`.

    A callback that is a plain function is called in a thread with one broadcast after the other, and may call the bus; a
    coroutine function runs on the loop, as a function that is given as `where` does.
    """

    sent = Attribute[int]()
    """Broadcasts that were handed to the engine."""

    send = verb(Broadcasts.send)
    forget = verb(Broadcasts.forget)

    subscribe = maker(Broadcasts.subscribe, _subscription)


class BlockingListener(_Serving[Listener]):
    """Takes notifications: see `redpoll.bus.notifications.Listener`."""

    stats = Attribute[NotificationStats]()
    """The statistics."""


class _Priorities(Face[PrioritiesT]):
    """A method for each priority."""

    notify = verb(Priorities.notify)
    debug = verb(Priorities.debug)
    audit = verb(Priorities.audit)
    info = verb(Priorities.info)
    warn = verb(Priorities.warn)
    error = verb(Priorities.error)
    critical = verb(Priorities.critical)
    sample = verb(Priorities.sample)


class BlockingNotifier(_Priorities[Notifier]):
    """Sends notifications in the name of a publisher: see `redpoll.bus.notifications.Notifier`.

    It can be given to `NotificationHandler` and `WSGIMiddleware`, which send by `post`.
    """

    _home: BusResident

    publisher = Attribute[str]()
    """The publisher."""

    topics = Attribute[tuple[str, ...]]()
    """The topics."""

    stats = Attribute[NotificationStats]()
    """The statistics of all notifiers of this bus."""

    def prepare(self, *, publisher: str | None = None, retry: int | None = None) -> BlockingNotifier:
        """A notifier for another publisher, or with other retries; None leaves either."""
        return BlockingNotifier(self._home, self._target.prepare(publisher=publisher, retry=retry))

    notify = verb(Notifier.notify)

    def bind(self) -> Self:
        """Bind this notifier to the loop, for `post`; return itself."""
        call(self._home, self._target.bind)
        return self

    def post(self, priority: Priority, event: str, payload: Any = None) -> None:
        """Send without waiting; at most 10,000 wait, and what fails is logged."""
        if self._target._loop is None:
            self.bind()
        self._target.post(priority, event, payload)


class BlockingRoutingNotifier(_Priorities[RoutingNotifier]):
    """Sends each notification by all notifiers with rules that it fits: see `redpoll.bus.notifications.RoutingNotifier`.

    It works as long as the bus of its first notifier is open. Those of other buses, and others that are awaited
    (`redpoll.bus.notifications.LogNotifier`), can be among them.

    Args:
        *routes: Rules, and notifiers.

    Raises:
        UsageError: None of them is a notifier of a bus for threads.
    """

    def __init__(self, *routes: Route[NotifierLike | BlockingNotifier] | NotifierLike | BlockingNotifier) -> None:
        homes: list[BusResident] = []

        def awaited(notifier: Any) -> NotifierLike:
            if isinstance(notifier, BlockingNotifier):
                homes.append(notifier._home)
                return notifier._target
            found: NotifierLike = notifier
            return found

        made: list[Route[NotifierLike]] = [
            Route(awaited(each.notifier), each.events, each.priorities)
            if isinstance(each, Route)
            else Route(awaited(each))
            for each in routes
        ]
        if not homes:
            raise UsageError("none of the notifiers is one of a bus for threads", "pass bus.notifier(...)")
        super().__init__(homes[0], RoutingNotifier(*made))


class BlockingNotifications(Face[Notifications]):
    """Events that listeners receive: see `redpoll.bus.notifications.Notifications`."""

    options = Attribute[NotificationOptions]()
    """Their options."""

    stats = Attribute[NotificationStats]()
    """The statistics of sent notifications."""

    notifier = maker(Notifications.notifier, BlockingNotifier)
    listen = maker(Notifications.listen, BlockingListener)
