"""Nodes whose links an MQTT broker carries."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from redpoll import ConfigError, Message, nq
from redpoll.nq.mqtt import broker
from redpoll.nq.mqtt.carrier import MqttCarrier
from redpoll.nq.mqtt.mux import CHUNK
from tests.node.support import Inbox, within
from tests.nq.mqtt.support import Mosquitto, carried, passwords, tapping

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("quiet_loop")]

BODY = bytes(range(256)) * 8192


def echo(message: Any) -> bytes:
    """Answer with the same, backwards."""
    return bytes(message.data[::-1])


def says(answer: bytes) -> Callable[[Any], bytes]:
    """Answer everything with that."""
    return lambda _: answer


async def test_messages_and_answers_pass(mosquitto: Mosquitto) -> None:
    """Small, empty and large ones, to the server and back."""
    async with carried(mosquitto, echo) as server, carried(mosquitto, listen=False) as client:
        assert server.address == mosquitto.address
        for body in (b"", b"small", BODY, bytes(5 * len(BODY))):
            answer = await within(client.request(Message(body, mosquitto.address)))
            assert bytes(answer.data) == body[::-1]


async def test_order_holds(mosquitto: Mosquitto) -> None:
    """A thousand messages of mixed sizes arrive in the order in which they were sent."""
    inbox = Inbox()
    draw = random.Random(1)
    sizes = [draw.choice((1, 100, 5_000, CHUNK, 300_000)) for _ in range(1_000)]
    sent = [index.to_bytes(4, "big") * (size // 4 + 1) for index, size in enumerate(sizes)]
    async with carried(mosquitto, inbox), carried(mosquitto, listen=False) as client:
        for start in range(0, len(sent), 50):
            futures = [client.send(Message(body, mosquitto.address)) for body in sent[start : start + 50]]
            await within(asyncio.gather(*futures))
    assert [body[:4] for body in inbox.begun] == [body[:4] for body in sent]
    assert list(map(len, inbox.begun)) == list(map(len, sent))


async def test_two_prefixes_do_not_see_each_other(mosquitto: Mosquitto) -> None:
    """Each client reaches the server of its prefix."""
    async with AsyncExitStack() as stack:
        for prefix in ("one", "two/deep"):
            await stack.enter_async_context(
                carried(mosquitto, says(prefix.encode()), carrier=MqttCarrier(nq.CommunicatorOptions(prefix=prefix)))
            )
        for prefix in ("one", "two/deep"):
            client = await stack.enter_async_context(
                carried(mosquitto, listen=False, carrier=MqttCarrier(nq.CommunicatorOptions(prefix=prefix)))
            )
            answer = await within(client.request(Message(b"who?", mosquitto.address)))
            assert answer.data == prefix.encode()


async def test_a_second_server_at_the_prefix_does_not_start(mosquitto: Mosquitto) -> None:
    """It is told by an error that names the option, nothing of it is left, and the first one goes on."""
    carrier = MqttCarrier(nq.CommunicatorOptions())
    async with carried(mosquitto, echo), carried(mosquitto, listen=False) as client:
        with pytest.raises(ConfigError, match="prefix='redpoll': another server serves it at this MQTT broker"):
            await carried(mosquitto, echo, carrier=carrier).start()
        assert not carrier._login.ending
        assert (await within(client.request(Message(b"ab", mosquitto.address)))).data == b"ba"


async def test_a_server_may_follow_another(mosquitto: Mosquitto) -> None:
    """One that stopped, in good order, is in nobody's way; its clients find the next one."""
    async with carried(mosquitto, listen=False) as client:
        for said in (b"first", b"second"):
            async with carried(mosquitto, says(said)):
                answer = await within(client.request(Message(b"who?", mosquitto.address)))
                assert answer.data == said


@pytest.mark.parametrize("count", [3, 20])
@pytest.mark.parametrize("size", [13, 10 * 1024, 2 * 1024 * 1024])
async def test_a_broadcast_is_one_publish(mosquitto: Mosquitto, count: int, size: int) -> None:
    """What goes to several in one turn is published once, a large body once per piece."""
    inbox, hello = Inbox(), Inbox()
    body = os.urandom(size)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(carried(mosquitto, hello))
        for _ in range(count):
            client = await stack.enter_async_context(carried(mosquitto, inbox, listen=False))
            await within(client.send(Message(b"here", mosquitto.address)))
        with tapping(mosquitto.address) as tap:
            tap.flushed()
            await within(asyncio.gather(*(server.send(message.reply(body)) for message in hello.messages)))
            holding = [payload for _, payload in tap.flushed() if mark(body, payload)]
    assert len(holding) == max(1, size // CHUNK), [len(each) for each in holding]
    assert inbox.begun == [body] * count


def mark(body: bytes, payload: bytes) -> bool:
    """Whether a payload has a piece of the body in it."""
    return body[-13:] in payload if len(body) <= CHUNK else len(payload) > CHUNK


async def test_what_is_for_one_goes_to_that_one(mosquitto: Mosquitto) -> None:
    """Its body is in no payload of another topic."""
    secret = os.urandom(16)
    async with (
        carried(mosquitto, lambda _: secret),
        carried(mosquitto, listen=False) as client,
        carried(mosquitto, listen=False) as other,
    ):
        await within(other.send(Message(b"here", mosquitto.address)))
        with tapping(mosquitto.address) as tap:
            await within(client.request(Message(b"tell me", mosquitto.address)))
            topics = {topic for topic, payload in tap.flushed() if secret in payload}
    assert len(topics) == 1
    assert "/down/" in topics.pop()


#: What `MqttCarrier` says of access lists.
ACCESS = """
user server
topic write redpoll/server
topic read redpoll/server
topic write redpoll/all
topic write redpoll/down/#
topic read redpoll/up/#

user client
topic read redpoll/server
topic read redpoll/all

pattern write redpoll/up/%c
pattern read redpoll/down/%c
"""


async def test_access_lists_keep_clients_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With those that the documentation names all works, and who may only be a client cannot be the server."""
    access = tmp_path / "access"
    access.write_text(ACCESS)
    users = passwords(tmp_path, "server", "client")
    mosquitto = Mosquitto(tmp_path, "allow_anonymous false", f"password_file {users}", f"acl_file {access}")
    mosquitto.start()
    inbox, hello = Inbox(), Inbox()
    try:
        async with AsyncExitStack() as stack:
            carrier = MqttCarrier(nq.CommunicatorOptions(username="server", password="secret"))
            server = await stack.enter_async_context(carried(mosquitto, hello, carrier=carrier))
            carrier = MqttCarrier(nq.CommunicatorOptions(username="client", password="secret"))
            for _ in range(3):
                client = await stack.enter_async_context(carried(mosquitto, inbox, carrier=carrier, listen=False))
                await within(client.send(Message(b"here", mosquitto.address)))
            await within(asyncio.gather(*(server.send(message.reply(BODY)) for message in hello.messages)))
            assert inbox.begun == [BODY] * 3
            monkeypatch.setattr(broker, "CONNECT_TIMEOUT", 0.5)
            carrier = MqttCarrier(nq.CommunicatorOptions(username="client", password="secret"))
            with pytest.raises(ConfigError, match="refuses publishing to redpoll/server"):
                await carried(mosquitto, echo, carrier=carrier).start()
    finally:
        mosquitto.kill()


async def test_threads_that_connect_in_vain_are_waited_for(
    mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dial was given up while the broker stood still: at the end of a node nothing of it is left."""
    monkeypatch.setattr(broker, "CONNECT_TIMEOUT", 0.3)
    mosquitto.freeze()
    carrier = MqttCarrier(nq.CommunicatorOptions(security=nq.SecurityOptions()))
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(carrier.dial(mosquitto.address, asyncio.BufferedProtocol, loop))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert carrier._login.ending
    await within(carrier.wait_ended())
    assert not carrier._login.ending
