"""A client and who is at the address of its directory: what goes wrong there, and that it is tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from redpoll import Address, ConfigError, Node, ProtocolError, Received
from redpoll.errors import DirectoryUnavailable, NameTaken, WiringError
from redpoll.wiring.directory import protocol
from redpoll.wiring.directory.client import DirectoryClient
from redpoll.wiring.directory.entries import Entry
from redpoll.wiring.directory.session import refusal
from redpoll.wiring.directory.table import LookupResult, Outcome, RegistrationResult
from tests.node.support import PATIENCE, make, until
from tests.wiring.directory.support import HERE, OWNER

KEY = ("exchange", "E")
WELCOME = protocol.HELLO.reply(protocol.Welcome(protocol.VERSION, 60.0, 0.0, True, "127.0.0.1"))
NOBODY = protocol.LOOKUP.reply([LookupResult(1, None, True)])


class Impostor:
    """What answers in place of a directory: word by word what it is told to.

    Attributes:
        answers: By word: the answer, or the reason of a refusal.
        heard: The words that came.
    """

    def __init__(self, **answers: bytes | str) -> None:
        self.answers = answers
        self.heard: list[str] = []

    def __call__(self, message: Received[bytes]) -> bytes | None:
        word = message.header.decode().removeprefix("directory ")
        self.heard.append(word)
        answer = self.answers.get(word, protocol.say(None))
        if isinstance(answer, bytes):
            return answer
        message.refuse(answer)
        return None


def use(node: Node[Any], **options: Any) -> DirectoryClient:
    """A client of who is there."""
    return DirectoryClient(node.address, **{"timeout": PATIENCE, **options})


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("what?", "what?"),
        (b"", "cannot decode"),
        (b"hello", "cannot decode"),
        (protocol.say([1]), "cannot decode"),
        (protocol.say_problem("version", "this directory speaks version 9"), "version 9"),
    ],
)
async def test_who_is_no_directory(answer: Any, reason: str) -> None:
    """Whoever answers a hello with something else is tried again and again, and calls say why they got nothing."""
    impostor = Impostor(hello=answer)
    async with make(impostor) as node, use(node) as client:
        await until(lambda: len(impostor.heard) > 2, "several attempts")
        # One of another version may be replaced, what is no directory at all is told at once.
        other = reason == "version 9"
        assert client.state == ("connecting" if other else "refused")
        with pytest.raises(DirectoryUnavailable if other else ConfigError, match=reason):
            await client.lookup("queue", "Q", timeout=0 if other else None)
        impostor.answers = {"hello": WELCOME, "lookup": NOBODY}
        await until(lambda: client.state == "up", "the directory")
        assert await client.lookup("queue", "Q") is None


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("answer", "error"),
    [("no", ProtocolError), (protocol.say([]), ProtocolError), (protocol.say_problem("what", "ever"), ProtocolError)],
)
async def test_answers_that_are_none(answer: Any, error: type[Exception]) -> None:
    """A directory that does not answer as one is an error of the call, and no reason to ask it for ever."""
    async with make(Impostor(hello=WELCOME, lookup=answer, register=answer)) as node, use(node) as client:
        for call in (client.lookup("queue", "Q"), client.register("queue", "Q", HERE)):
            with pytest.raises(error):
                await call


@pytest.mark.asyncio
async def test_a_directory_that_has_forgotten() -> None:
    """One that wants a hello first gets it, and the call is made again."""
    impostor = Impostor(hello=WELCOME, lookup=protocol.say_problem("hello", "say hello first"))
    async with make(impostor) as node, use(node) as client:
        await until(lambda: client.state == "up", "the welcome")
        looking = asyncio.ensure_future(client.lookup("queue", "Q"))
        await until(lambda: impostor.heard.count("hello") > 2, "several attempts")
        impostor.answers["lookup"] = NOBODY
        assert await looking is None


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "prepare",
    [
        lambda client: client.watch("queue", "Q", lambda entry: None),
        lambda client: client._desired.register(Entry("queue", "Q", HERE, None, OWNER)),
    ],
)
async def test_answers_to_all_it_wants(prepare: Callable[[DirectoryClient], object]) -> None:
    """What it wants is asked for before it is up, and an answer about other things is none."""
    impostor = Impostor(hello=WELCOME, watch=protocol.say([]), register=protocol.say([]))
    async with make(impostor) as node:
        client = use(node)
        await client.start()
        prepare(client)
        await until(lambda: impostor.heard.count("hello") > 2, "several attempts")
        assert client.state == "connecting"
        assert isinstance(client.last_error, ProtocolError)
        await client.close()


@pytest.mark.asyncio
async def test_words_that_are_not_for_it() -> None:
    """A client refuses what is no news, and news that cannot be read, and goes on."""
    refused: list[str] = []

    async def handler(message: Received[bytes]) -> bytes:
        if message.header == protocol.LOOKUP.header:
            for header in (protocol.NEWS.header, b"other"):
                try:
                    await message.node.send(message.reply(b"\x05", header=header))
                except Exception as error:  # noqa: BLE001  # it is looked at below
                    refused.append(type(error).__name__)
            return NOBODY
        return WELCOME if message.header == protocol.HELLO.header else protocol.say(None)

    async with make(handler, slots=4) as node, use(node) as client:
        assert await client.lookup("queue", "Q") is None
    assert refused == ["Refused", "Refused"]


@pytest.mark.parametrize(
    ("result", "kind", "text"),
    [
        (RegistrationResult(Outcome.TAKEN), NameTaken, "another owner has it"),
        (RegistrationResult(Outcome.TAKEN, 4.25), NameTaken, "for another 4.2 s"),
        (RegistrationResult(Outcome.FULL, limit=10_000), WiringError, "its limit is 10,000"),
        (RegistrationResult(Outcome.LOOPBACK), ConfigError, "the directory at 10.0.0.1:5682 is not on loopback"),
        (RegistrationResult(Outcome.NOWHERE), ConfigError, "it cannot be dialled"),
    ],
)
def test_what_a_registration_fails_with(result: RegistrationResult, kind: type[Exception], text: str) -> None:
    """Each failure is an error that says what is the matter."""
    error = refusal(Entry("exchange", "E", HERE, None, OWNER), result, Address.parse("10.0.0.1:5682"))
    assert type(error) is kind
    assert text in str(error)
