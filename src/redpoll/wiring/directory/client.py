"""The client of a directory: what it has registered and watches it keeps asking for, whatever becomes of the directory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

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
from redpoll.node.sending import UNSET, Unset, check_seconds
from redpoll.tls import TLS
from redpoll.wiring.directory import protocol as words
from redpoll.wiring.directory.entries import Entry, Key, Kind, key_of, place_problem, style_of
from redpoll.wiring.directory.meeting import Meeting, State, refusal
from redpoll.wiring.directory.table import Outcome, Verdict
from redpoll.wiring.directory.tokens import token_bytes
from redpoll.wiring.directory.wishes import Registration, Watch, Wishes

__all__ = ["DirectoryClient", "unavailable"]

T = TypeVar("T")

#: Seconds between two attempts to have a name whose owner is gone: at most, and at least.
_TRY_EVERY: Final = 0.25
_TRY_AGAIN: Final = 0.02

#: Seconds for one attempt to dial, and without a word after which a link is closed: leases are renewed more often.
_DIALLING: Final = 5.0
_REUSE: Final = 60.0

_SILENT: Final = "it may be halted or busy; if there is none, start one with: redpoll directory"

_logger = logging.getLogger("redpoll.wiring")


class DirectoryClient:
    """Registers names at a directory, looks names up, and watches them.

    It survives the directory: killed and started again, or out of reach for a while, that gets all that was registered and
    watched again by itself. While it is away calls wait for it, as long as their timeouts allow.

    Args:
        address: Where the directory is.
        token: What it wants to be shown; None: nothing.
        tls: Certificates, as `Config.tls`.
        encryption: As `Config.encryption`.
        owner_identity: The node identity of whom the names belong to, 16 bytes: a later run of the same takes its names over
            at once. None: a random one.
        timeout: Seconds that a call has unless it says otherwise; None is no limit.

    Attributes:
        address: Where the directory is.
        owner_identity: Whom the names belong to.
        lost: A hook, called with an error when the directory was there and is gone, or does not let this client in any more.
        back: A hook, called when it is there again and has all that was registered.
        taken: A hook, called with kind, name and an error when a name that was registered here is not ours any more, as it
            can be after a directory was started again; it is asked for again and again.

    Hooks and callbacks are plain functions, called on the event loop that it was started on, to which all of it belongs. One
    that raises is logged.

    Raises:
        ConfigError: An option has a value that it cannot have.
        UsageError: The address cannot be read, or the timeout is none.
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
    ) -> None:
        self.address = Address.parse(address)
        self.owner_identity = os.urandom(16) if owner_identity is None else _identity(owner_identity)
        if timeout is not None:
            check_seconds(timeout)
        self._timeout = timeout
        self.lost: Callable[[RedpollError], object] | None = None
        self.back: Callable[[], object] | None = None
        self.taken: Callable[[str, str, RedpollError], object] | None = None
        self._wishes = Wishes(self._unwatched)
        hello = words.Hello(words.VERSION, os.urandom(16), time.time_ns(), token_bytes(token) or b"")
        config = Config(
            listen=False, tls=tls, encryption=encryption, timeout=None, connect_timeout=_DIALLING, reuse_time=_REUSE
        )
        self._meeting = Meeting(self.address, config, hello, self._wishes, self._tell)

    # Life

    async def start(self) -> None:
        """Begin to dial; does not wait for the directory.

        Raises:
            ConfigError: The certificates cannot be used.
            UsageError: It was started before.
        """
        await self._meeting.start()

    def inherit(self) -> None:
        """For the library: this is a child of the process, and lets go of what is the parent's."""
        self._meeting.inherit()

    async def close(self) -> None:
        """Take back what was registered, if the directory answers within a second, and stop.

        Calls that wait fail with `Closed`. Closing it again does nothing. Cancelled, it does not wait for the directory.
        """
        await self._meeting.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # Looking

    @property
    def state(self) -> State:
        """How it stands with the directory.

        "connecting" until it is met for the first time, "up", "lost" when it was and is not now, "refused" where this client
        is not let in, or the ends do not agree on encryption; "new" before `start`, "closed" after `close`.
        """
        return self._meeting.state

    @property
    def trouble(self) -> RedpollError | None:
        """Why the directory is not met, as far as is known; None while it is."""
        return self._meeting.why

    @property
    def near(self) -> bool | None:
        """Whether the link to the directory stays on this machine, as the directory says; None before it was met."""
        welcome = self._meeting.welcome
        return None if welcome is None else welcome.near

    @property
    def settled(self) -> bool:
        """Whether the directory knows of each name whether anybody has it: not in its first lease, while owners come back."""
        return self._meeting.settled

    @property
    def local_host(self) -> str | None:
        """The IP address of this machine that the link to the directory has; None before there was one over TCP."""
        return self._meeting.local_host

    async def ready(self, *, timeout: float | Unset | None = UNSET) -> None:
        """Wait until the directory is met: it knows all that is registered, and `near` and `local_host` are known.

        Args:
            timeout: Seconds; unset is that of the client, None is no limit.

        Raises:
            DirectoryUnavailable: The directory did not answer in time.
            NotAuthorized: The directory wants another token.
            TLSError: The ends do not agree on encryption, or on who is who.
            Closed: The client is not running.
        """
        async with self._in_time(timeout):
            await self._meeting.wait()

    # Names to have

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
        """Have a name, from now until it is unregistered or this client is closed.

        Registering it again replaces what was registered. A name whose owner is gone is waited for: it is free when the lease
        of that one is over. The log says so.

        Args:
            kind: "exchange" or "queue".
            name: The name.
            address: Where others can dial its owner.
            style: Of an exchange, how it hands messages out: text, or a member of an enum of such.
            identity: Of the node that is dialled there, 16 bytes; None: `owner_identity`.
            timeout: Seconds; unset is that of the client, None is no limit.
            until_free: Whether the rest of the lease of an owner that is gone is waited for on top of that.

        Raises:
            NameTaken: Another owner has it, or is gone and was not waited for long enough.
            DirectoryUnavailable: The directory did not answer in time.
            ConfigError: Nobody can dial the address; or only this machine can, and the directory is on another.
            NotAuthorized: The directory wants another token.
            TLSError: The ends do not agree on encryption, or on who is who.
            WiringError: There are too many names.
            UsageError: An argument cannot be meant.
            Closed: The client is not running.

        After an error, or when it is cancelled, the name is not wanted any more.
        """
        item = words.Item(
            key_of(kind, name),
            Address.parse(address),
            style_of(style),
            self.owner_identity if identity is None else _identity(identity),
        )
        problem = place_problem(item.address)
        if problem is not None:
            raise ConfigError("advertise", str(item.address), problem)
        self._meeting.check()
        registration = self._wishes.register(item)
        verdicts: list[Verdict] = []
        try:
            async with self._in_time(timeout) as limit:
                await self._have(registration, verdicts, limit if until_free else None)
        except BaseException as error:
            if self._wishes.drop(registration):
                # It may have been ours, and the answer is what did not come.
                self._meeting.post(words.UNREGISTER, [item.key])
            if verdicts and isinstance(error, DirectoryUnavailable):
                raise refusal(item, verdicts[-1], self.address) from None
            raise

    async def _have(self, registration: Registration, verdicts: list[Verdict], limit: asyncio.Timeout | None) -> None:
        """Ask for a name until it is ours, or is refused for good; the first wait for a lease moves the limit."""
        item = registration.item
        asked = registration

        def body() -> bytes:
            # Who registers the name once more means that: what was meant before would replace it again.
            nonlocal asked
            asked = self._wishes.registrations.get(item.key, registration)
            return words.say_items([asked.item])

        while True:
            verdict = self._single(words.read_verdicts(await self._meeting.ask(words.REGISTER, body)))
            self._wishes.answered(asked, verdict)
            if verdict.outcome is Outcome.REGISTERED:
                return
            if verdict.outcome is not Outcome.TAKEN or verdict.free_in is None:
                raise refusal(item, verdict, self.address)
            if not verdicts:
                _logger.warning(
                    "the owner of the %s %r is gone: the directory %s keeps the name for it for another %.1f s",
                    *item.key,
                    self.address,
                    verdict.free_in,
                )
                if limit is not None and (when := limit.when()) is not None:
                    limit.reschedule(when + verdict.free_in)
            verdicts[:] = [verdict]
            # Leases that are over end a little later.
            await asyncio.sleep(min(max(verdict.free_in, _TRY_AGAIN), _TRY_EVERY))

    async def unregister(self, kind: Kind, name: str, *, timeout: float | Unset | None = UNSET) -> None:
        """Give a name up. Where the directory is not there that is done at once: it learns it when it is back.

        Args:
            kind: "exchange" or "queue".
            name: The name; nothing is done if it was not registered here.
            timeout: Seconds; unset is that of the client, None is no limit.

        Raises:
            DirectoryUnavailable: The directory did not answer in time; it will learn it.
            UsageError: An argument cannot be meant.
            Closed: The client is not running.
        """
        key = key_of(kind, name)
        if self.state != "refused":
            self._meeting.check()
        registration = self._wishes.registrations.get(key)
        if registration is None:
            return
        self._wishes.drop(registration)
        if self._meeting.met:
            async with self._in_time(timeout):
                await self._meeting.ask(words.UNREGISTER, words.say_keys([key]))

    # Names to know of

    async def lookup(self, kind: Kind, name: str, *, timeout: float | Unset | None = UNSET) -> Entry | None:
        """Who has a name; None: nobody.

        A directory that was started just now does not know yet that nobody has a name: then it is waited for, until somebody
        has it, the directory knows, or the time is over; after that it is None as well, and at once where as
        many names are watched as one client may.

        Args:
            kind: "exchange" or "queue".
            name: The name.
            timeout: Seconds; unset is that of the client, None is no limit.

        Raises:
            DirectoryUnavailable: The directory did not answer in time.
            NotAuthorized: The directory wants another token.
            TLSError: The ends do not agree on encryption, or on who is who.
            UsageError: An argument cannot be meant.
            Closed: The client is not running.
        """
        key = key_of(kind, name)
        self._meeting.check()
        answered = False
        try:
            async with self._in_time(timeout):
                answer = await self._meeting.ask(words.LOOKUP, words.say_keys([key]))
                seen = self._single(words.read_sights(answer))
                if seen is not None and (seen.known or seen.entry is not None):
                    return seen.entry
                answered = True
                return await self._appeared(key)
        except DirectoryUnavailable:
            if not answered:
                raise
            return None

    async def _appeared(self, key: Key) -> Entry | None:
        """Wait until it is known who has a name."""
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
        """Be told who has a name: when that is known for the first time, and whenever it changes.

        While the directory is gone nothing is told, and when it is back what has changed.

        Args:
            kind: "exchange" or "queue".
            name: The name.
            callback: A plain function, called with the entry, or with None when nobody has the name.

        Returns:
            What stands for it: `cancel` ends it.

        Raises:
            WiringError: There are too many.
            UsageError: An argument cannot be meant.
            Closed: The client is not running.
        """
        key = key_of(kind, name)
        if self.state != "refused":
            self._meeting.check()
        watch, new = self._wishes.watch(key, callback)
        if new:
            self._meeting.post(words.WATCH, [key])
        else:
            asyncio.get_running_loop().call_soon(self._wishes.remind, watch)
        return watch

    def _unwatched(self, key: Key) -> None:
        self._meeting.post(words.UNWATCH, [key])

    async def list(self, *, timeout: float | Unset | None = UNSET) -> tuple[Entry, ...]:
        """Every name that the directory knows, in order; those that come or go meanwhile may be in it or not.

        Args:
            timeout: Seconds; unset is that of the client, None is no limit.

        Raises:
            DirectoryUnavailable: The directory did not answer in time.
            NotAuthorized: The directory wants another token.
            TLSError: The ends do not agree on encryption, or on who is who.
            Closed: The client is not running.
        """
        found: list[Entry] = []
        async with self._in_time(timeout):
            while True:
                last = found[-1].key if found else None
                page = words.read_entries(await self._meeting.ask(words.LIST, words.say_place(last)))
                if not page:
                    break
                found += page
        return tuple(found)

    # Within

    @contextlib.asynccontextmanager
    async def _in_time(self, timeout: float | Unset | None) -> AsyncIterator[asyncio.Timeout]:
        """What needs the directory, in some time.

        Raises:
            DirectoryUnavailable: It did not end in time.
        """
        seconds = self._timeout if isinstance(timeout, Unset) else timeout
        if seconds is not None:
            check_seconds(seconds)
        try:
            async with asyncio.timeout(seconds) as limit:
                yield limit
        except TimeoutError:
            trouble = self._meeting.why
            why = f"no answer in {seconds:g} s" if trouble is None else str(trouble)
            raise unavailable(self.address, trouble, why) from trouble

    def _single(self, answers: Sequence[T]) -> T:
        if len(answers) != 1:
            raise ProtocolError("that is no answer about one name", self.address)
        return answers[0]

    def _tell(self, hook: Literal["lost", "back", "taken"], *args: Any) -> None:
        function: Callable[..., object] | None = getattr(self, hook)
        if function is None:
            return
        try:
            function(*args)
        except (Exception, asyncio.CancelledError):
            _logger.exception("the hook %s of a client of a directory raised", hook)


def unavailable(address: Address, trouble: RedpollError | None, reason: str) -> DirectoryUnavailable:
    """What says that a directory does not answer, with what to do: one is to be started where nobody listens.

    Args:
        address: Where it should be.
        trouble: Why it is not met, as far as is known.
        reason: The same in words.
    """
    cause = trouble.__cause__ if isinstance(trouble, DialFailed) else None
    is_nobody = isinstance(cause, OSError) and not isinstance(cause, TimeoutError)
    return DirectoryUnavailable(address, reason, None if is_nobody else _SILENT)


def _identity(value: Any) -> bytes:
    if not isinstance(value, bytes) or len(value) != 16:
        raise UsageError("an identity is 16 bytes")
    return value
