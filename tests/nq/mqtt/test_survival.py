"""What nodes live through at a broker: its end, its standing still, that of the other end, and readers that are slow."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from redpoll import Message, Node, nq
from redpoll.errors import NotSent, RedpollError
from redpoll.nq.mqtt import broker as module
from redpoll.nq.mqtt.carrier import MqttCarrier
from redpoll.nq.mqtt.mux import WINDOW
from redpoll.nq.mqtt.payloads import Kind, pack, read
from redpoll.testing.certificates import Certificates
from tests.cli.support import environment
from tests.node.support import Inbox, until, within
from tests.nq.mqtt.support import Lobby, Mosquitto, Reader, carried, dialled, listening, tapping
from tests.transport.support import Lost

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("quiet_loop")]

BODY = bytes(range(256)) * 1024

#: A client that sends until it is killed.
SENDER = """
import asyncio, sys
from redpoll import Message, nq
from redpoll.nq.mqtt.carrier import MqttCarrier
from redpoll.node import Node

class CarriedNode(Node):
    _carrier = MqttCarrier(nq.CommunicatorOptions())

async def main():
    async with CarriedNode(listen=False) as node:
        while True:
            await node.send(Message(bytes(100_000), sys.argv[1]))

asyncio.run(main())
"""


def sender(broker: Mosquitto) -> subprocess.Popen[bytes]:
    """Start it."""
    return subprocess.Popen([sys.executable, "-c", SENDER, str(broker.address)], env=environment())


@asynccontextmanager
async def one_link(broker: Mosquitto) -> AsyncIterator[tuple[Reader, Reader]]:
    """A client's end and a server's, without nodes."""
    carrier, lobby = MqttCarrier(nq.CommunicatorOptions()), Lobby()
    listener = await within(listening(broker, lobby, carrier))
    client = await within(dialled(broker, carrier))
    (server,) = lobby.readers
    yield client, server
    listener.close()
    await within(listener.wait_closed())


async def send_on(node: Node[Any], broker: Mosquitto, stop: asyncio.Event) -> int:
    """Send four messages at a time until told to stop; return how many were confirmed. Each ends somehow."""
    confirmed = 0
    while not stop.is_set():
        futures = [node.send(Message(BODY, broker.address), timeout=3.0) for _ in range(4)]
        outcomes = await within(asyncio.gather(*futures, return_exceptions=True))
        assert all(outcome is None or isinstance(outcome, RedpollError) for outcome in outcomes)
        confirmed += outcomes.count(None)
    return confirmed


async def test_a_broker_that_is_killed_and_comes_back(mosquitto: Mosquitto) -> None:
    """Several times, while messages go both ways: each send ends, none that was confirmed was not handled."""
    inbox = Inbox()
    stop = asyncio.Event()
    async with carried(mosquitto, inbox), carried(mosquitto, listen=False) as client:
        sending = asyncio.create_task(send_on(client, mosquitto, stop))
        for _ in range(4):
            before = len(inbox.ended)
            await inbox.holds(before + 20)
            mosquitto.kill()
            await asyncio.sleep(0)
            mosquitto.start()
        await inbox.holds(len(inbox.ended) + 20)
        stop.set()
        assert await within(sending) <= len(inbox.ended)


async def test_a_broker_that_stands_still_and_goes_on(mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links end once it is taken for dead, and come back with it."""
    monkeypatch.setattr(module, "KEEPALIVE", 1)
    inbox = Inbox()
    stop = asyncio.Event()
    async with carried(mosquitto, inbox) as server, carried(mosquitto, listen=False) as client:
        lost: list[Any] = []
        server.events.peer_lost = lambda peer, error: lost.append(error)
        sending = asyncio.create_task(send_on(client, mosquitto, stop))
        for _ in range(2):
            await inbox.holds(len(inbox.ended) + 20)
            lost.clear()
            mosquitto.freeze()
            await until(lambda: lost, "the loss of the link")
            mosquitto.thaw()
        await inbox.holds(len(inbox.ended) + 20)
        stop.set()
        assert await within(sending) <= len(inbox.ended)


async def test_nodes_stop_while_the_broker_stands_still(mosquitto: Mosquitto) -> None:
    """Both, with messages on their way, and nothing is left open."""
    async with carried(mosquitto, Inbox(hold=True)) as server, carried(mosquitto, listen=False) as client:
        await within(client.ready(mosquitto.address))
        futures = [client.send(Message(BODY, mosquitto.address)) for _ in range(50)]
        mosquitto.freeze()
        await within(asyncio.gather(client.stop(drain=0), server.stop(drain=0)))
    outcomes = await within(asyncio.gather(*futures, return_exceptions=True))
    assert all(isinstance(outcome, RedpollError) for outcome in outcomes)


async def test_a_client_that_is_killed_is_missed_at_once(mosquitto: Mosquitto) -> None:
    """In the middle of what it sends; the server serves others."""
    inbox = Inbox()
    async with carried(mosquitto, inbox) as server, carried(mosquitto, listen=False) as other:
        for _ in range(2):
            lost = Lost(server)
            before = len(inbox.ended)
            process = sender(mosquitto)
            try:
                async with asyncio.timeout(30):
                    while len(inbox.ended) < before + 5:  # noqa: ASYNC110  # the condition lies in a list
                        await asyncio.sleep(0.01)
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait()
            await lost.error()
            await within(other.send(Message(b"still there", mosquitto.address)))


@pytest.mark.parametrize("reads_at", ["server", "client"])
async def test_who_does_not_read_holds_up_its_writer_alone(mosquitto: Mosquitto, reads_at: str) -> None:
    """What is not read waits at who wrote it: the broker and the reader hold no more than a window of it."""
    async with one_link(mosquitto) as (client, server):
        reader, writer = (server, client) if reads_at == "server" else (client, server)
        assert reader.transport is not None
        assert writer.transport is not None
        reader.transport.pause_reading()
        resident = mosquitto.resident
        body = memoryview(os.urandom(1 << 20))
        for _ in range(64):
            writer.transport.write(body)
        await until(lambda: getattr(reader.transport, "unread") >= WINDOW, "a window to come")  # noqa: B009
        assert getattr(reader.transport, "unread") < 2 * WINDOW  # noqa: B009  # CarriedTransport's
        assert writer.transport.get_write_buffer_size() > (64 << 20) - 2 * WINDOW
        assert mosquitto.resident - resident < 4 * WINDOW
        reader.transport.resume_reading()
        await until(lambda: len(reader.got) == 64 << 20, "all of it")
        assert reader.got == bytes(body) * 64
        reader.transport.abort()
        await until(lambda: writer.lost, "the end")


async def test_a_large_message_takes_little_memory_on_its_way(mosquitto: Mosquitto) -> None:
    """Half a GiB to who throws it away: neither the sender nor the broker holds a tenth of it."""
    async with one_link(mosquitto) as (client, server):
        seen = 0

        def forget() -> None:
            nonlocal seen
            seen += len(server.got)
            server.got.clear()

        server.act = forget
        body = memoryview(bytes(1 << 20))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        resident = mosquitto.resident
        assert client.transport is not None
        for _ in range(512):
            client.transport.write(body)
        async with asyncio.timeout(50):
            while seen < 512 << 20:
                await asyncio.sleep(0.01)
                assert mosquitto.resident - resident < 50 << 20
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 50 * 1024
        client.transport.abort()
        await until(lambda: server.lost, "the end")


async def test_a_payload_that_was_lost_ends_the_link(mosquitto: Mosquitto) -> None:
    """And one that came twice does not: nothing is read twice, nor with a hole in it."""
    async with one_link(mosquitto) as (client, server):
        with tapping(mosquitto.address) as tap:
            tap.flushed()
            assert client.transport is not None
            client.transport.write(b"once")
            await until(lambda: server.got, "bytes")
            topic, payload = tap.flushed()[-1]
            header = read(payload)
            assert header is not None
            tap.publish(topic, payload)
            tap.publish(topic, pack(Kind.BYTES, header.link, header.number + 2) + b"a hole before it")
        await until(lambda: server.lost and client.lost, "the end")
        assert server.got == b"once"
        assert "lost at the MQTT broker" in str(server.lost[0])


async def test_a_stranger_cannot_speak_for_a_client(mosquitto: Mosquitto) -> None:
    """With another name it is not heard, even if it knows the link's."""
    async with one_link(mosquitto) as (client, server):
        with tapping(mosquitto.address) as tap:
            tap.flushed()
            assert client.transport is not None
            client.transport.write(b"mine")
            await until(lambda: server.got, "bytes")
            header = read(tap.flushed()[-1][1])
            assert header is not None
            for kind in (Kind.BYTES, Kind.CLOSE, Kind.GONE):
                tap.publish("redpoll/up/0123456789abcdef", pack(kind, header.link, header.number + 1) + b"not mine")
        client.transport.write(b", and mine")
        await until(lambda: server.got == b"mine, and mine", "more bytes")
        assert server.lost == []
        client.transport.abort()
        await until(lambda: server.lost, "the end")


async def test_a_session_outlives_the_broker(mosquitto: Mosquitto) -> None:
    """With resume, what the end of the broker cut off goes again: all is handled once, in order, and confirmed."""
    inbox = Inbox()
    count = 400
    async with carried(mosquitto, inbox, resume=60.0), carried(mosquitto, listen=False, resume=60.0) as client:
        sent = [
            client.send(Message(index.to_bytes(4, "big") * 20_000, mosquitto.address), timeout=None)
            for index in range(count)
        ]
        for part in range(1, 4):
            await inbox.holds(part * count // 4)
            mosquitto.restart()
        await within(asyncio.gather(*sent))
    assert [int.from_bytes(body[:4], "big") for body in inbox.begun] == list(range(count))


async def test_a_ca_file_that_is_away_for_a_while(
    encrypted: Mosquitto, redpoll_pki: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A server and a client that reconnect meanwhile warn, try again, and serve and send once it is back."""
    ca, away = tmp_path / "ca.pem", tmp_path / "away.pem"
    ca.write_bytes(redpoll_pki.ca.read_bytes())
    given_up: list[object] = []
    carrier = MqttCarrier(nq.CommunicatorOptions(security=nq.SecurityOptions(cert=ca)), given_up=given_up.append)
    inbox = Inbox()
    async with (
        carried(encrypted, inbox, carrier=carrier),
        carried(encrypted, listen=False, carrier=carrier) as client,
    ):
        await within(client.send(Message(b"before", encrypted.address)))
        ca.rename(away)
        encrypted.restart()
        await until(lambda: "cannot be used" in caplog.text, "the warning")
        with pytest.raises(NotSent, match="cannot be used"):
            await within(client.send(Message(b"meanwhile", encrypted.address), dial="once"))
        waits = client.send(Message(b"after", encrypted.address), timeout=None)
        away.rename(ca)
        await within(waits)
        assert not given_up
        assert [record.levelname for record in caplog.records if "cannot be used" in record.getMessage()] == ["WARNING"]
