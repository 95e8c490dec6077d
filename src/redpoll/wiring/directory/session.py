"""The session of a client with its directory: dials, says hello, repeats all requests, and does so again after each loss."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Any, Final, Literal, TypeAlias, TypeVar

from redpoll.address import Address
from redpoll.config import Config
from redpoll.errors import (
    Closed,
    ConfigError,
    DecodeError,
    HandlerFailed,
    NameTaken,
    NoAnswer,
    NoHandler,
    NotAuthorized,
    OtherProtocol,
    PeerLost,
    ProtocolError,
    RedpollError,
    Refused,
    TLSError,
    Undecodable,
    UsageError,
    WiringError,
)
from redpoll.message import Message
from redpoll.node import Node, Received
from redpoll.node.door import Peer, local_host, peer_of, why_unreachable
from redpoll.wiring.directory import protocol
from redpoll.wiring.directory.desired import DesiredState, Registration
from redpoll.wiring.directory.entries import Entry, Key
from redpoll.wiring.directory.table import LookupResult, Outcome, RegistrationResult

__all__ = ["Endpoint", "Session", "State", "refusal"]

T = TypeVar("T")

State: TypeAlias = Literal["new", "connecting", "up", "lost", "refused", "closed"]
"""State of a client's link to its directory."""

#: Seconds for a directory to answer requests that no call waits for: after its start all clients return at once.
_PATIENCE: Final = 15.0

#: Seconds between two attempts to reach the directory: at first, and at most.
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0

#: Maximum seconds between two renewals, and the share of a lease after which it is renewed.
_RENEW_EVERY: Final = 5.0
_SHARE: Final = 1 / 3

#: Seconds for the directory to answer the goodbye of a client.
_PARTING: Final = 1.0

_logger = logging.getLogger("redpoll.wiring")

#: Errors that a new attempt would repeat, unless something is changed at one end.
_FINAL = (TLSError, NotAuthorized, UsageError)

#: Errors of a hello to a node that is no directory, or to another server; also a plain `Refused`.
_NO_DIRECTORY = (DecodeError, HandlerFailed, NoHandler, OtherProtocol, Undecodable)


class Session:
    """The session of one client with its directory, over any number of links.

    Args:
        address: The address of the directory.
        node: The node that dials it; started and stopped by others. It hands over what `arrived` and `ended` take.
        hello: The client's hello.
        desired: The client's registrations and watches.
        tell: Called with the name of a hook and its arguments.

    Attributes:
        state: The state of the link to it.
        last_error: The reason why it is not reached, as far as known.
        welcome: The directory's last answer to a hello.
        local_host: The local IP address of the link to it; None before there was one, and for a unix socket.
    """

    def __init__(
        self,
        address: Address,
        node: Node[Any],
        hello: protocol.Hello,
        desired: DesiredState,
        tell: Callable[..., object],
    ) -> None:
        self.address = address
        self.state: State = "new"
        self.last_error: RedpollError | None = None
        self.welcome: protocol.Welcome | None = None
        self.local_host: str | None = None
        #: Time when the directory knows of each name whether it has an owner; None before the first contact.
        self._settles_at: float | None = None
        self._hello = hello
        self._desired = desired
        self._tell = tell
        self._node = node
        #: The directory, after it has answered a hello.
        self._peer: Peer | None = None
        self._task: asyncio.Task[None] | None = None
        #: True if it was ever reached; True from the call of `lost` to that of `back`.
        self._was_met = False
        self._missed = False
        #: True if it has answered a hello over this link.
        self._is_known = False
        #: Set while calls need not wait: the directory is reached, refuses this client, or the client is closed.
        self._decided = asyncio.Event()
        #: Set when the session must begin anew.
        self._parted = asyncio.Event()

    def start(self) -> None:
        """Begin to dial."""
        self.state = "connecting"
        self._task = asyncio.create_task(self._keep_met(), name="redpoll directory client")

    async def close(self) -> None:
        """Say goodbye if the directory is there, and stop."""
        task = self._task
        if task is None or self.state == "closed":
            self.state = "closed"
            return
        self.state = "closed"
        self._decided.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if self._is_known:
            try:
                await self._request(protocol.BYE, timeout=_PARTING)
            except RedpollError:
                pass  # the directory notices that the link is lost

    @property
    def settled(self) -> bool:
        """True if the directory knows of each name whether it has an owner, as far as known."""
        return self._settles_at is not None and asyncio.get_running_loop().time() >= self._settles_at

    @property
    def met(self) -> bool:
        """True if the directory is reached and has all requests."""
        return self.state == "up" and self._decided.is_set()

    @property
    def why(self) -> RedpollError | None:
        """The reason why it is not reached, as far as known; None while it is reached."""
        if self.state in {"new", "up"}:
            return None
        return self.last_error or why_unreachable(self._node, self.address)

    def check(self) -> None:
        """Raise an error if calls cannot be carried out.

        Raises:
            Closed: The client is not running.
            NotAuthorized: The directory refuses this client.
            TLSError: The ends do not agree on encryption.
            ConfigError: The options of the client are invalid.
        """
        if self.state in {"new", "closed"}:
            raise Closed("client of the directory")
        if self.state == "refused" and self.last_error is not None:
            # A copy: each error has a traceback of its own.
            error = copy(self.last_error)
            raise error from self.last_error.__cause__

    async def wait(self) -> None:
        """Wait until the directory is reached.

        Raises:
            RedpollError: As of `check`.
        """
        self.check()
        await self._decided.wait()
        self.check()

    async def ask(self, word: protocol.Word, value: Any) -> Any:
        """Send a word, and again over the next link if this one is lost: it may be sent twice.

        Args:
            word: The word.
            value: Its value; a function is called each time that the word is sent.

        Returns:
            The answer.

        Raises:
            ProtocolError: The directory refuses the word.
            DecodeError: The answer is malformed.
            RedpollError: As of `check`.
        """
        while True:
            await self.wait()
            try:
                return await self._request(word, value() if callable(value) else value)
            except (*_FINAL, ProtocolError, DecodeError):
                raise
            except RedpollError as error:
                self.last_error = error
                self._part()
                await asyncio.sleep(_FIRST_PAUSE)

    def post(self, word: protocol.Word, keys: Sequence[Key]) -> None:
        """Send a word about names that no call waits for; if the link is lost, the next session sends it."""

        def answered(asking: asyncio.Future[Received[Any]]) -> None:
            if asking.cancelled():
                return
            try:
                value = _value(word, asking.result(), self.address)
                if word == protocol.WATCH:
                    self._saw(keys, value)
            except RedpollError as error:
                self.last_error = error
                self._part()

        if self.met:
            message = Message(word.say(keys), self.address, header=word.header)
            self._node.request(message, timeout=_PATIENCE).add_done_callback(answered)

    async def _request(self, word: protocol.Word, value: Any = None, timeout: float | None = None) -> Any:
        try:
            message = Message(word.say(value), self.address, header=word.header)
            answer = await self._node.request(message, timeout=timeout)
        except Refused as error:
            if type(error) is not Refused:
                raise
            raise ProtocolError(error.text or "it was refused", self.address) from error
        return _value(word, answer, self.address)

    # Session

    async def _keep_met(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                await self._meet()
            except Closed:
                return
            except RedpollError as error:
                self._failed(error)
                await asyncio.sleep(pause * (0.5 + 0.5 * random.random()))  # noqa: S311  # no secret
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                pause = _FIRST_PAUSE
                await self._stay()

    async def _meet(self) -> None:
        """Say hello, and repeat all requests."""
        self._part()
        self._parted.clear()
        try:
            await self._node.ready(self.address, timeout=None)
            hello = Message(protocol.HELLO.say(self._hello), self.address, header=protocol.HELLO.header)
            answer = await self._node.request(hello, timeout=_PATIENCE)
            welcome = _value(protocol.HELLO, answer, self.address)
        except RedpollError as error:
            # The only NoAnswer with a remedy is that of a handler which returned None.
            other = isinstance(error, _NO_DIRECTORY) or (isinstance(error, NoAnswer) and error.hint is not None)
            if self._was_met or not (other or type(error) is Refused):
                raise
            problem = f"what answers there is no directory: {error._reason(self.address)}"
            hint = "is the address right? Start one with: redpoll directory"
            raise ConfigError("directory", str(self.address), problem, hint) from error
        self._is_known = True
        self._peer = peer_of(answer)
        self.welcome = welcome
        self._settles_at = asyncio.get_running_loop().time() + welcome.settles_in
        self.local_host = local_host(answer)
        desired = self._desired
        desired.begin()
        for batch in _batches(list(desired.registrations.values())):
            await self._register(batch)
        await self._request(protocol.SETTLED, timeout=_PATIENCE)
        asked: set[Key] = set()
        while missing := [key for key in desired.watched if key not in asked]:
            # Others may have been added meanwhile.
            for keys in _batches(missing):
                self._saw(keys, await self._request(protocol.WATCH, keys, _PATIENCE))
            asked.update(missing)
        if self._parted.is_set():
            # The link was lost, or a name was taken over: all of it again.
            return
        self.state = "up"
        self.last_error = None
        self._was_met = True
        self._decided.set()
        for keys in _batches(list(asked.difference(desired.watched))):
            self.post(protocol.UNWATCH, keys)
        if self._missed:
            self._missed = False
            self._tell("back")

    async def _register(self, registrations: Sequence[Registration]) -> None:
        results = await self._request(protocol.REGISTER, [each.entry for each in registrations], _PATIENCE)
        if len(results) != len(registrations):
            raise ProtocolError("the answer has another number of names", self.address)
        for registration, result in zip(registrations, results, strict=True):
            if self._desired.answered(registration, result):
                error = refusal(registration.entry, result, self.address)
                _logger.warning("lost a name at the directory %s: %s", self.address, error)
                self._tell("taken", *registration.entry.key, error)

    def _saw(self, keys: Sequence[Key], lookups: Sequence[LookupResult | None]) -> None:
        if len(lookups) != len(keys):
            raise ProtocolError("the answer has another number of names", self.address)
        for key, seen in zip(keys, lookups, strict=True):
            if seen is not None:
                self._desired.saw(key, seen)

    async def _stay(self) -> None:
        """Renew the lease until the session must begin anew."""
        lease = _RENEW_EVERY if self.welcome is None else self.welcome.lease
        interval = min(_RENEW_EVERY, lease * _SHARE)
        while not self._parted.is_set():
            try:
                async with asyncio.timeout(interval):
                    await self._parted.wait()
            except TimeoutError:
                try:
                    if not await self._request(protocol.RENEW, self._desired.count, _PATIENCE):
                        return
                    for batch in _batches(self._desired.lost):
                        await self._register(batch)
                    unseen = self._desired.unseen
                    for keys in _batches(unseen):
                        self._saw(keys, await self._request(protocol.WATCH, keys, _PATIENCE))
                except RedpollError as error:
                    self.last_error = error
                    return

    def _failed(self, error: RedpollError) -> None:
        """Note that the directory is not reached, and why."""
        if self.state == "closed":
            return
        self.last_error = error
        was_up = self.state == "up"
        if isinstance(error, _FINAL):
            self.state = "refused"
            self._decided.set()
        else:
            self.state = "lost" if self._was_met else "connecting"
            self._part()
        if was_up and not self._missed:
            self._missed = True
            self._tell("lost", error)

    def _part(self) -> None:
        """End the session; the next one begins."""
        self._parted.set()
        if self.state not in {"closed", "refused"}:
            self._decided.clear()

    # Called by the node

    def ended(self, peer: Peer, error: RedpollError) -> None:
        """Handle the end of a peer's session: perhaps that of the directory."""
        if peer is self._peer:
            self.unlinked(peer.identity, error)

    def unlinked(self, identity: bytes | None, error: RedpollError) -> None:
        """Handle the loss of the link to a peer."""
        if self._peer is not None and identity == self._peer.identity:
            self._is_known = False
            self._part()
            if self.state == "up":
                self._failed(error)

    def arrived(self, message: Received[Any]) -> bool:
        """Process news of the directory; return False if it is nothing that a directory sends."""
        if message.header != protocol.NEWS.header or peer_of(message) is not self._peer:
            return False
        try:
            news = protocol.NEWS.read(message.data)
        except DecodeError as error:
            message.refuse(error.problem)
            return True
        for key, seen in news.seen:
            self._desired.saw(key, seen)
        if news.again:
            self._part()
        return True


class Endpoint(Node[Any]):
    """A node for the protocol of directories alone.

    Args:
        arrived: Handles a message.
        ended: Called with a peer whose session has ended, and the reason.
        config: The options.
    """

    def __init__(
        self, arrived: Callable[[Received[Any]], Any], ended: Callable[[Peer, RedpollError], None], config: Config
    ) -> None:
        super().__init__(arrived, config)
        self._ended = ended

    def _session_ended(self, peer: Peer, error: RedpollError) -> None:
        self._ended(peer, error)


def refusal(entry: Entry, result: RegistrationResult, directory: Address) -> RedpollError:
    """Return the error of a failed registration.

    Args:
        entry: The entry that was to be registered.
        result: The directory's result: a failure.
        directory: The address of the directory.
    """
    if result.outcome is Outcome.TAKEN:
        if result.free_in is None:
            return NameTaken(*entry.key, "another owner has it at the directory")
        return NameTaken(
            *entry.key,
            f"its owner is gone, and the directory keeps it for that one for another {result.free_in:.1f} s",
            hint="wait that long, or start it with the identity that its owner had, Wiring(config=Config(identity=...)): "
            "that one has its names at once",
        )
    if result.outcome is Outcome.FULL:
        return WiringError(f"the directory takes no more names: its limit is {result.limit:,}")
    if result.outcome is Outcome.LOOPBACK:
        return ConfigError(
            "advertise",
            str(entry.address),
            f"only its own machine can reach that, and the link to the directory at {directory} is not on loopback",
            "give host= or advertise= an address by which other machines reach this one",
        )
    return ConfigError("advertise", str(entry.address), "it cannot be dialled")


def _value(word: protocol.Word, answer: Received[Any], address: Address) -> Any:
    """Return the value of the answer to a word.

    Raises:
        DecodeError: The answer is malformed.
        NotAuthorized: The directory refuses the token.
        PeerLost: It requires a hello first: it was restarted.
        ProtocolError: It has another version.
    """
    said = protocol.read_answer(answer.data)
    if not said.problem:
        return word.result(said.value)
    if said.problem == "token":
        raise NotAuthorized(said.text, address, "give the token that the directory was started with")
    if said.problem == "hello":
        raise PeerLost(address, "it was started again")
    raise ProtocolError(said.text, address)


def _batches(things: Sequence[T]) -> Iterator[Sequence[T]]:
    for first in range(0, len(things), protocol.BATCH):
        yield things[first : first + protocol.BATCH]
