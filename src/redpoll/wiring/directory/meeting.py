"""How a client is with its directory: it dials, says hello, asks for all it wants, and does so again whenever need be."""

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
from redpoll.node.door import Peer, local_host, why_unreachable
from redpoll.node.lifecycle import release_inherited
from redpoll.wiring.directory import protocol as words
from redpoll.wiring.directory.entries import Key
from redpoll.wiring.directory.table import Outcome, Seen, Verdict
from redpoll.wiring.directory.wishes import Registration, Wishes

__all__ = ["Meeting", "State", "refusal"]

T = TypeVar("T")

State: TypeAlias = Literal["new", "connecting", "up", "lost", "refused", "closed"]
"""How a client stands with its directory."""

#: Seconds that a directory has to answer what is not asked by a call: after its start all clients come at once.
_PATIENCE: Final = 15.0

#: Seconds between two attempts to meet one that does not answer as it should: at first, and at most.
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0

#: Seconds between two renewals at most, and the share of a lease after which it is renewed.
_RENEW_EVERY: Final = 5.0
_SHARE: Final = 1 / 3

#: Seconds that a directory has to hear of the end of a client.
_PARTING: Final = 1.0

_logger = logging.getLogger("redpoll.wiring")

#: What no other attempt would mend, unless something is changed at one end.
_FINAL = (TLSError, NotAuthorized, UsageError)

#: What a hello meets at a node that is no directory, or at no node at all; and a plain `Refused`.
_NO_DIRECTORY = (DecodeError, HandlerFailed, NoHandler, OtherProtocol, Undecodable)


class Meeting:
    """One client's dealings with its directory, over any number of links.

    Attributes:
        address: Where the directory is.
        state: How it stands.
        trouble: Why it is not met, as far as is known.
        welcome: What the directory said last when it was met.
        local_host: The IP address that the link to it has at this end; None before there was one, and for a unix socket.
    """

    def __init__(
        self,
        address: Address,
        config: Config,
        hello: words.Hello,
        wishes: Wishes,
        tell: Callable[..., object],
    ) -> None:
        """Do nothing yet.

        Args:
            address: Where the directory is.
            config: Of the node that dials it.
            hello: Who the client is.
            wishes: What it wants.
            tell: Called with the name of a hook and what that is called with.
        """
        self.address = address
        self.state: State = "new"
        self.trouble: RedpollError | None = None
        self.welcome: words.Welcome | None = None
        self.local_host: str | None = None
        #: When the directory knows of each name whether anybody has it; None before it was met.
        self._settles_at: float | None = None
        self._hello = words.say_hello(hello)
        self._wishes = wishes
        self._tell = tell
        self._node = _Dialling(self, config)
        self._task: asyncio.Task[None] | None = None
        #: Whether it was ever met; whether `lost` was told, and `back` was not.
        self._was_met = False
        self._missed = False
        #: Whether it has answered a hello over this link, and whether it knows all that is wanted.
        self._is_known = False
        self._is_met = False
        #: Set while there is no use in waiting for the directory: it is met, refuses this client, or nobody wants it.
        self._decided: asyncio.Event
        #: Set when it has to be met anew.
        self._parted: asyncio.Event

    async def start(self) -> None:
        """Begin to dial."""
        if self.state != "new":
            raise UsageError(f"this client of a directory is {self.state}: it is started once")
        self._decided = asyncio.Event()
        self._parted = asyncio.Event()
        await self._node.start()
        self.state = "connecting"
        self._task = asyncio.create_task(self._keep_met(), name="redpoll directory client")

    def inherit(self) -> None:
        """This is a child of the process."""
        release_inherited(self._node)

    async def close(self) -> None:
        """Say goodbye if the directory is there, and stop."""
        task = self._task
        if task is None or self.state == "closed":
            self.state = "closed"
            return
        self.state = "closed"
        self._decided.set()
        try:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if self._is_known:
                await self._request(words.BYE, words.NOTHING, _PARTING)
        except RedpollError:
            pass  # it will see that the link is gone
        finally:
            task.cancel()
            await self._node.stop(0)

    @property
    def settled(self) -> bool:
        """Whether the directory knows of each name whether anybody has it, as far as is known."""
        return self._settles_at is not None and asyncio.get_running_loop().time() >= self._settles_at

    @property
    def met(self) -> bool:
        """Whether the directory is there and knows all that is wanted."""
        return self.state == "up" and self._is_met

    @property
    def why(self) -> RedpollError | None:
        """Why it is not met, as far as is known; None while it is."""
        if self.state in {"new", "up"}:
            return None
        return self.trouble or self._node.why(self.address)

    def check(self) -> None:
        """Refuse a call that cannot be carried out.

        Raises:
            Closed: It is not running.
            NotAuthorized: The directory does not let this client in.
            TLSError: The ends do not agree on encryption.
            ConfigError: The options of the client are why.
        """
        if self.state in {"new", "closed"}:
            raise Closed("client of the directory")
        if self.state == "refused" and self.trouble is not None:
            # Each has a traceback of its own.
            error = copy(self.trouble)
            raise error from self.trouble.__cause__

    async def wait(self) -> None:
        """Wait until the directory is met.

        Raises:
            RedpollError: As of `check`.
        """
        self.check()
        await self._decided.wait()
        self.check()

    async def ask(self, word: bytes, data: bytes | Callable[[], bytes]) -> Any:
        """Say a word, and again over the next link if this one is lost: each may be said twice.

        Args:
            word: The word.
            data: What belongs to it; a function is called each time that it is said.

        Returns:
            What was answered.

        Raises:
            ProtocolError: The directory does not understand it.
            DecodeError: The answer is none.
            RedpollError: As of `check`.
        """
        while True:
            await self.wait()
            try:
                return await self._request(word, data if isinstance(data, bytes) else data(), None)
            except (*_FINAL, ProtocolError, DecodeError):
                raise
            except RedpollError as error:
                self.trouble = error
                self._part()
                await asyncio.sleep(_FIRST_PAUSE)

    def post(self, word: bytes, keys: Sequence[Key]) -> None:
        """Say something about names that nobody waits for; not said, it is said when the directory is met anew."""

        def answered(asking: asyncio.Future[Received[Any]]) -> None:
            if asking.cancelled():
                return
            try:
                value = _value(asking.result(), self.address)
                if word == words.WATCH:
                    self._saw(keys, value)
            except RedpollError as error:
                self.trouble = error
                self._part()

        if self.met:
            message = Message(words.say_keys(keys), self.address, header=word)
            self._node.request(message, timeout=_PATIENCE).add_done_callback(answered)

    async def _request(self, word: bytes, data: bytes, timeout: float | None) -> Any:
        try:
            answer = await self._node.request(Message(data, self.address, header=word), timeout=timeout)
        except Refused as error:
            if type(error) is not Refused:
                raise
            raise ProtocolError(error.text or "it was refused", self.address) from error
        return _value(answer, self.address)

    # Meeting it

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
        """Say hello, and ask for all that is wanted."""
        self._part()
        self._parted.clear()
        try:
            await self._node.ready(self.address, timeout=None)
            hello = Message(self._hello, self.address, header=words.HELLO)
            answer = await self._node.request(hello, timeout=_PATIENCE)
            welcome = words.read_welcome(_value(answer, self.address))
        except RedpollError as error:
            # The only NoAnswer with a remedy is that of a handler which returned None.
            other = isinstance(error, _NO_DIRECTORY) or (isinstance(error, NoAnswer) and error.hint is not None)
            if self._was_met or not (other or type(error) is Refused):
                raise
            problem = f"what answers there is no directory: {error._reason(self.address)}"
            hint = "is the address right? Start one with: redpoll directory"
            raise ConfigError("directory", str(self.address), problem, hint) from error
        self._is_known = True
        self.welcome = welcome
        self._settles_at = asyncio.get_running_loop().time() + welcome.settles_in
        self.local_host = local_host(answer)
        wishes = self._wishes
        wishes.begin()
        for batch in _batches(list(wishes.registrations.values())):
            await self._register(batch)
        await self._request(words.SETTLED, words.NOTHING, _PATIENCE)
        asked: set[Key] = set()
        while missing := [key for key in wishes.watched if key not in asked]:
            # Others may have been added meanwhile.
            for keys in _batches(missing):
                self._saw(keys, await self._request(words.WATCH, words.say_keys(keys), _PATIENCE))
            asked.update(missing)
        if self._parted.is_set():
            # Its link was lost, or something was taken from us: all of it once more.
            return
        self.state = "up"
        self.trouble = None
        self._was_met = self._is_met = True
        self._decided.set()
        for keys in _batches(list(asked.difference(wishes.watched))):
            self.post(words.UNWATCH, keys)
        if self._missed:
            self._missed = False
            self._tell("back")

    async def _register(self, registrations: Sequence[Registration]) -> None:
        body = words.say_items(each.item for each in registrations)
        verdicts = words.read_verdicts(await self._request(words.REGISTER, body, _PATIENCE))
        if len(verdicts) != len(registrations):
            raise ProtocolError("that is no answer to so many names", self.address)
        for registration, verdict in zip(registrations, verdicts, strict=True):
            if self._wishes.answered(registration, verdict):
                error = refusal(registration.item, verdict, self.address)
                _logger.warning("lost a name at the directory %s: %s", self.address, error)
                self._tell("taken", *registration.item.key, error)

    def _saw(self, keys: Sequence[Key], value: Any) -> None:
        sights: list[Seen | None] = words.read_sights(value)
        if len(sights) != len(keys):
            raise ProtocolError("that is no answer to so many names", self.address)
        for key, seen in zip(keys, sights, strict=True):
            if seen is not None:
                self._wishes.saw(key, seen)

    async def _stay(self) -> None:
        """Renew the lease until the directory has to be met anew."""
        lease = _RENEW_EVERY if self.welcome is None else self.welcome.lease
        interval = min(_RENEW_EVERY, lease * _SHARE)
        while not self._parted.is_set():
            try:
                async with asyncio.timeout(interval):
                    await self._parted.wait()
            except TimeoutError:
                try:
                    if not await self._request(words.RENEW, words.say_count(self._wishes.count), _PATIENCE):
                        return
                    for batch in _batches(self._wishes.lost):
                        await self._register(batch)
                    unseen = self._wishes.unseen
                    for keys in _batches(unseen):
                        self._saw(keys, await self._request(words.WATCH, words.say_keys(keys), _PATIENCE))
                except RedpollError as error:
                    self.trouble = error
                    return

    def _failed(self, error: RedpollError) -> None:
        """It is not met, and why."""
        if self.state == "closed":
            return
        self.trouble = error
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
        """The directory has to be met anew."""
        self._is_met = False
        self._parted.set()
        if self.state not in {"closed", "refused"}:
            self._decided.clear()

    # The node

    def ended(self, error: RedpollError) -> None:
        """The link to the directory is lost."""
        self._is_known = False
        self._part()
        if self.state == "up":
            self._failed(error)

    def arrived(self, message: Received[Any]) -> None:
        """The directory has news."""
        if message.header != words.NEWS:
            message.refuse("this is a client of a directory, which accepts only messages of its own protocol")
            return
        try:
            again, news = words.read_news(message.data)
        except DecodeError as error:
            message.refuse(error.problem)
            return
        for key, seen in news:
            self._wishes.saw(key, seen)
        if again:
            self._part()


class _Dialling(Node[Any]):
    """The node of a client."""

    def __init__(self, meeting: Meeting, config: Config) -> None:
        super().__init__(meeting.arrived, config)
        self._meeting = meeting

    def why(self, address: Address) -> RedpollError | None:
        """Why an address that is being dialled was not reached so far."""
        return why_unreachable(self, address)

    def _session_ended(self, peer: Peer, error: RedpollError) -> None:  # noqa: ARG002
        self._meeting.ended(error)


def refusal(item: words.Item, verdict: Verdict, directory: Address) -> RedpollError:
    """What a registration fails with.

    Args:
        item: What was to be registered.
        verdict: What the directory says of it; not that it is.
        directory: Where that is.
    """
    if verdict.outcome is Outcome.TAKEN:
        if verdict.free_in is None:
            return NameTaken(*item.key, "another owner has it at the directory")
        return NameTaken(
            *item.key,
            f"its owner is gone, and the directory keeps it for that one for another {verdict.free_in:.1f} s",
            hint="wait that long, or start it with the identity that its owner had, Wiring(config=Config(identity=...)): "
            "that one has its names at once",
        )
    if verdict.outcome is Outcome.FULL:
        return WiringError(f"the directory takes no more names: its limit is {verdict.limit:,}")
    if verdict.outcome is Outcome.LOOPBACK:
        return ConfigError(
            "advertise",
            str(item.address),
            f"only its own machine can reach that, and the link to the directory at {directory} is not on loopback",
            "give host= or advertise= an address by which other machines reach this one",
        )
    return ConfigError("advertise", str(item.address), "nobody can dial that")


def _value(answer: Received[Any], address: Address) -> Any:
    """What was answered.

    Raises:
        NotAuthorized: The directory does not take the token.
        PeerLost: It wants a hello first: it is another run of it.
        ProtocolError: It speaks another version.
    """
    said = words.read_answer(answer.data)
    if not said.problem:
        return said.value
    if said.problem == "token":
        raise NotAuthorized(said.text, address, "give the token that the directory was started with")
    if said.problem == "hello":
        raise PeerLost(address, "it was started again")
    raise ProtocolError(said.text, address)


def _batches(things: Sequence[T]) -> Iterator[Sequence[T]]:
    for first in range(0, len(things), words.BATCH):
        yield things[first : first + words.BATCH]
