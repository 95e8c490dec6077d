"""The client of a directory: keeps registrations and watches over lost links and restarts of the directory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, Self

from redpoll.address import Address
from redpoll.config import Config
from redpoll.errors import (
    ConfigError,
    DialFailed,
    DirectoryUnavailable,
    ProtocolError,
    RedpollError,
    UsageError,
    WiringError,
)
from redpoll.node import Node, Received
from redpoll.node.door import Peer
from redpoll.node.hooks import log_raised
from redpoll.node.reports import Repeated
from redpoll.node.sending import UNSET, Unset, check_seconds
from redpoll.tls import TLS
from redpoll.wiring.directory import protocol
from redpoll.wiring.directory.desired import DesiredState, Registration, Watch
from redpoll.wiring.directory.entries import Entry, Key, Kind, key_of, place_problem, style_of
from redpoll.wiring.directory.session import Endpoint, Session, State, refusal
from redpoll.wiring.directory.table import LookupResult, Outcome, RegistrationResult
from redpoll.wiring.directory.tokens import token_bytes

__all__ = ["DirectoryClient", "unavailable"]

#: Maximum, and minimum, seconds between two attempts to register a name whose owner is gone.
_TRY_EVERY: Final = 0.25
_TRY_AGAIN: Final = 0.02

#: Seconds for one attempt to dial, and seconds of silence after which a link is closed: leases are renewed more often.
_DIALLING: Final = 5.0
_REUSE: Final = 60.0

_SILENT: Final = "it may be halted or busy; if there is none, start one with: redpoll directory"

_logger = logging.getLogger("redpoll.wiring")


class DirectoryClient:
    """Registers names at a directory, looks names up, and watches them.

    If the directory is restarted, or was unreachable, all registrations and watches are repeated. While it is away, calls
    wait for it, as long as their timeouts allow.

    Args:
        address: The address of the directory.
        token: The token that it requires; None for none.
        tls: Certificates, as `Config.tls`.
        encryption: As `Config.encryption`.
        owner_identity: The node identity of the names' owner, 16 bytes: a later run with the same one takes its names over
            at once. None: a random one.
        timeout: Default seconds of a call; None is no limit.
        node: The node that dials the directory, started and stopped by its owner, which hands `session` the messages and the
            ends of sessions; None: one of its own, with `tls` and `encryption`.

    Attributes:
        address: The address of the directory.
        owner_identity: The identity of the names' owner.
        lost: A hook, called with an error when the link to the directory is lost, or the directory now refuses this client.
        back: A hook, called when the directory is reached again and has all registrations.
        taken: A hook, called with kind, name and an error when a registered name now has another owner, as can happen after
            a restart of the directory; the name is requested again and again.

    Hooks and callbacks are plain functions, called on the event loop on which the client was started; call its methods there
    too. An exception of a hook is logged.

    Raises:
        ConfigError: An option has an invalid value.
        UsageError: The address or the timeout is invalid.
    """

    def __init__(
        self,
        address: Address | str,
        *,
        token: str | bytes | None = None,
        tls: TLS | tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
        encryption: bool | Literal["auto"] = "auto",
        owner_identity: bytes | None = None,
        timeout: float | None = 5.0,
        node: Node[Any] | None = None,
    ) -> None:
        self.address = Address.parse(address)
        self.owner_identity = os.urandom(16) if owner_identity is None else _identity(owner_identity)
        check_seconds(timeout)
        self._timeout = timeout
        self.lost: Callable[[RedpollError], object] | None = None
        self.back: Callable[[], object] | None = None
        self.taken: Callable[[str, str, RedpollError], object] | None = None
        names: tuple[Literal["lost", "back", "taken"], ...] = ("lost", "back", "taken")
        logs = {name: partial(log_raised, f"{name} of a client of a directory", logger=_logger) for name in names}
        self._raised = {name: Repeated(log) for name, log in logs.items()}
        self._desired = DesiredState(lambda key: self.session.post(protocol.UNWATCH, [key]))
        hello = protocol.Hello(protocol.VERSION, os.urandom(16), time.time_ns(), token_bytes(token) or b"")
        self._own_node: Endpoint | None = None
        if node is None:
            config = Config(
                listen=False, tls=tls, encryption=encryption, timeout=None, connect_timeout=_DIALLING, reuse_time=_REUSE
            )
            node = self._own_node = Endpoint(self._arrived, self._ended, config)
        self.session = Session(self.address, node, hello, self._desired, self._tell)

    def _arrived(self, message: Received[Any]) -> None:
        if not self.session.arrived(message):
            message.refuse("this is a client of a directory, which accepts only messages of its own protocol")

    def _ended(self, peer: Peer, error: RedpollError) -> None:
        self.session.ended(peer, error)

    # Life

    async def start(self) -> None:
        """Begin to dial; does not wait for the directory.

        Raises:
            ConfigError: The certificates cannot be used.
            UsageError: It was started before.
        """
        if self.state != "new":
            raise UsageError(f"this client of a directory is {self.state}: it is started once")
        if self._own_node is not None:
            await self._own_node.start()
        self.session.start()

    async def close(self) -> None:
        """Unregister all names, if the directory answers within a second, and stop.

        Waiting calls fail with `Closed`. A second call does nothing. If it is cancelled, it does not wait for the directory.
        """
        try:
            await self.session.close()
        finally:
            if self._own_node is not None:
                await self._own_node.stop(0)
            for each in self._raised.values():
                each.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # State

    @property
    def state(self) -> State:
        """The state of the link to the directory.

        "connecting" until the first contact, "up", "lost" after a lost link, "refused" if the directory refuses this client,
        or the ends do not agree on encryption; "new" before `start`, "closed" after `close`.
        """
        return self.session.state

    @property
    def last_error(self) -> RedpollError | None:
        """The reason why the directory is not reached, as far as known; None while it is reached."""
        return self.session.why

    @property
    def near(self) -> bool | None:
        """True if the link to the directory stays on this machine, as the directory says; None before the first contact."""
        welcome = self.session.welcome
        return None if welcome is None else welcome.near

    @property
    def settled(self) -> bool:
        """True if the directory knows of each name whether it has an owner: not in its first lease, while owners return."""
        return self.session.settled

    @property
    def local_host(self) -> str | None:
        """The local IP address of the link to the directory; None before there was a link over TCP."""
        return self.session.local_host

    async def ready(self, *, timeout: float | Unset | None = UNSET) -> None:
        """Wait until the directory is reached: it has all registrations, and `near` and `local_host` are known.

        Args:
            timeout: Seconds; unset is that of the client, None is no limit.

        Raises:
            DirectoryUnavailable: The directory did not answer in time.
            NotAuthorized: The directory wants another token.
            TLSError: The ends do not agree on encryption, or on each other's identity.
            Closed: The client is not running.
        """
        async with self._in_time(timeout):
            await self.session.wait()

    # Registrations

    async def register(
        self,
        kind: Kind,
        name: str,
        address: Address | str,
        style: Any = None,
        identity: bytes | None = None,
        *,
        timeout: float | Unset | None = UNSET,
        until_free: bool = False,
    ) -> None:
        """Register a name, until it is unregistered or this client is closed.

        A second registration replaces the first. If the owner of the name is gone, the call waits until its lease expires,
        and logs that.

        Args:
            kind: "exchange" or "queue".
            name: The name.
            address: The address at which others dial its owner.
            style: The style of an exchange: text, or a member of an enum of texts.
            identity: The identity of the node at that address, 16 bytes; None: `owner_identity`.
            timeout: Seconds; unset is that of the client, None is no limit.
            until_free: Extend the timeout by the rest of the lease of an owner that is gone.

        Raises:
            NameTaken: Another owner has it, or is gone and its lease has not expired in time.
            DirectoryUnavailable: The directory did not answer in time.
            ConfigError: The address cannot be dialled; or only by this machine, and the directory is on another.
            NotAuthorized: The directory wants another token.
            TLSError: The ends do not agree on encryption, or on each other's identity.
            WiringError: There are too many names.
            UsageError: An argument is invalid.
            Closed: The client is not running.

        After an error or cancellation, the name is no longer requested.
        """
        entry = Entry(
            *key_of(kind, name),
            Address.parse(address),
            style_of(style),
            self.owner_identity if identity is None else _identity(identity),
        )
        problem = place_problem(entry.address)
        if problem is not None:
            raise ConfigError("advertise", str(entry.address), problem)
        self.session.check()
        registration = self._desired.register(entry)
        taken: RegistrationResult | None = None
        try:
            async with self._in_time(timeout) as limit:
                while (result := await self._request(registration)).outcome is not Outcome.REGISTERED:
                    if result.outcome is not Outcome.TAKEN or result.free_in is None:
                        raise refusal(entry, result, self.address)  # noqa: TRY301  # as any other failure
                    if taken is None:
                        text = (
                            "the owner of the %s %r is gone: the directory %s keeps the name for it for another %.1f s"
                        )
                        _logger.warning(text, *entry.key, self.address, result.free_in)
                        if until_free and (when := limit.when()) is not None:
                            limit.reschedule(when + result.free_in)
                    taken = result
                    # An expired lease ends a little later.
                    await asyncio.sleep(min(max(result.free_in, _TRY_AGAIN), _TRY_EVERY))
        except BaseException as error:
            if self._desired.drop(registration):
                # It may be registered, and only the answer is missing.
                self.session.post(protocol.UNREGISTER, [entry.key])
            if taken is not None and isinstance(error, DirectoryUnavailable):
                raise refusal(entry, taken, self.address) from None
            raise

    async def _request(self, registration: Registration) -> RegistrationResult:
        """Request a name once."""
        asked = registration

        def entries() -> list[Entry]:
            # A later registration of the name replaces this one, whose data would replace it again.
            nonlocal asked
            asked = self._desired.registrations.get(registration.entry.key, registration)
            return [asked.entry]

        result: RegistrationResult = self._single(await self.session.ask(protocol.REGISTER, entries))
        self._desired.answered(asked, result)
        return result

    async def unregister(self, kind: Kind, name: str, *, timeout: float | Unset | None = UNSET) -> None:
        """Unregister a name. If the directory is away, the call returns at once: the directory is told when it is back.

        Args:
            kind: "exchange" or "queue".
            name: The name; nothing is done if it was not registered here.
            timeout: Seconds; unset is that of the client, None is no limit.

        Raises:
            DirectoryUnavailable: The directory did not answer in time; it is told later.
            UsageError: An argument is invalid.
            Closed: The client is not running.
        """
        key = key_of(kind, name)
        if self.state != "refused":
            self.session.check()
        registration = self._desired.registrations.get(key)
        if registration is None:
            return
        self._desired.drop(registration)
        if self.session.met:
            async with self._in_time(timeout):
                await self.session.ask(protocol.UNREGISTER, [key])

    # Lookups and watches

    async def lookup(self, kind: Kind, name: str, *, timeout: float | Unset | None = UNSET) -> Entry | None:
        """Return the entry of a name; None if it has no owner.

        A directory in its first lease does not know that a name has no owner: the call then waits until the name has one, the
        directory knows, or the time is over, which also returns None. At the limit of watched names it returns None at once.

        Args:
            kind: "exchange" or "queue".
            name: The name.
            timeout: Seconds; unset is that of the client, None is no limit.

        Raises:
            DirectoryUnavailable: The directory did not answer in time.
            NotAuthorized: The directory wants another token.
            TLSError: The ends do not agree on encryption, or on each other's identity.
            UsageError: An argument cannot be meant.
            Closed: The client is not running.
        """
        key = key_of(kind, name)
        self.session.check()
        answered = False
        try:
            async with self._in_time(timeout):
                seen: LookupResult | None = self._single(await self.session.ask(protocol.LOOKUP, [key]))
                if seen is not None and seen.tells:
                    return seen.entry
                answered = True
                return await self._appeared(key)
        except DirectoryUnavailable:
            if not answered:
                raise
            return None

    async def _appeared(self, key: Key) -> Entry | None:
        """Wait until the owner of a name is known."""
        known: asyncio.Future[Entry | None] = asyncio.get_running_loop().create_future()
        try:
            watch = self.watch(*key, lambda entry: None if known.done() else known.set_result(entry))
        except WiringError:  # too many
            return None
        try:
            return await known
        finally:
            watch.cancel()

    def watch(self, kind: Kind, name: str, callback: Callable[[Entry | None], object]) -> Watch:
        """Call a function with the owner of a name: when it is first known, and whenever it changes.

        While the directory is away, the function is not called; changes are reported when it is back.

        Args:
            kind: "exchange" or "queue".
            name: The name.
            callback: A plain function, called with the entry, or with None if the name has no owner.

        Returns:
            The watch; its `cancel` ends it.

        Raises:
            WiringError: There are too many watches.
            UsageError: An argument is invalid.
            Closed: The client is not running.
        """
        key = key_of(kind, name)
        if self.state != "refused":
            self.session.check()
        watch, new = self._desired.watch(key, callback)
        if new:
            self.session.post(protocol.WATCH, [key])
        else:
            asyncio.get_running_loop().call_soon(self._desired.remind, watch)
        return watch

    async def list(self, *, timeout: float | Unset | None = UNSET) -> tuple[Entry, ...]:
        """Return all names of the directory, in order; names that change meanwhile may be missing.

        Args:
            timeout: Seconds; unset is that of the client, None is no limit.

        Raises:
            DirectoryUnavailable: The directory did not answer in time.
            NotAuthorized: The directory wants another token.
            TLSError: The ends do not agree on encryption, or on each other's identity.
            Closed: The client is not running.
        """
        found: list[Entry] = []
        async with self._in_time(timeout):
            while page := await self.session.ask(protocol.LIST, found[-1].key if found else None):
                found += page
        return tuple(found)

    # Helpers

    @contextlib.asynccontextmanager
    async def _in_time(self, timeout: float | Unset | None) -> AsyncIterator[asyncio.Timeout]:
        """Limit the time of requests to the directory.

        Raises:
            DirectoryUnavailable: The requests did not end in time.
        """
        seconds = self._timeout if isinstance(timeout, Unset) else timeout
        check_seconds(seconds)
        try:
            async with asyncio.timeout(seconds) as limit:
                yield limit
        except TimeoutError:
            last_error = self.session.why
            why = f"no answer in {seconds:g} s" if last_error is None else str(last_error)
            raise unavailable(self.address, last_error, why) from last_error

    def _single(self, answers: Any) -> Any:
        if len(answers) != 1:
            raise ProtocolError("the answer is not about one name", self.address)
        return answers[0]

    def _tell(self, hook: Literal["lost", "back", "taken"], *args: Any) -> None:
        function: Callable[..., object] | None = getattr(self, hook)
        if function is None:
            return
        try:
            function(*args)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # a hook may raise anything
            self._raised[hook].note(error)


def unavailable(address: Address, last_error: RedpollError | None, reason: str) -> DirectoryUnavailable:
    """Return the error of a directory that does not answer; its hint says to start one if nothing listens there.

    Args:
        address: The address of the directory.
        last_error: The reason why it is not reached, as far as known.
        reason: The same as text.
    """
    cause = last_error.__cause__ if isinstance(last_error, DialFailed) else None
    is_nobody = isinstance(cause, OSError) and not isinstance(cause, TimeoutError)
    return DirectoryUnavailable(address, reason, None if is_nobody else _SILENT)


def _identity(value: Any) -> bytes:
    if not isinstance(value, bytes) or len(value) != 16:
        raise UsageError("an identity is 16 bytes")
    return value
