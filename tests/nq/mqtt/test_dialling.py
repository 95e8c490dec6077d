"""A client's link to its server: made, refused, given up."""

from __future__ import annotations

import asyncio

import pytest

from redpoll import nq
from redpoll.address import Address
from redpoll.errors import DialFailed
from redpoll.nq.mqtt.carrier import MqttCarrier
from redpoll.nq.mqtt.payloads import NOBODY, Kind, pack, read
from tests.node.support import until, within
from tests.nq.mqtt.support import Lobby, Mosquitto, Reader, dialled, listening, tapping
from tests.ports import free_port

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("quiet_loop")]


async def test_without_a_server_it_fails_at_once(mosquitto: Mosquitto) -> None:
    """The error names the prefix."""
    with pytest.raises(DialFailed, match="no server serves 'redpoll' at this MQTT broker"):
        await within(dialled(mosquitto, MqttCarrier(nq.CommunicatorOptions())))


async def test_a_server_of_another_prefix_is_none(mosquitto: Mosquitto) -> None:
    """Nothing reaches it."""
    lobby = Lobby()
    listener = await within(listening(mosquitto, lobby, MqttCarrier(nq.CommunicatorOptions(prefix="one"))))
    with pytest.raises(DialFailed, match="no server serves 'two'"):
        await within(dialled(mosquitto, MqttCarrier(nq.CommunicatorOptions(prefix="two"))))
    assert lobby.readers == []
    listener.close()
    await within(listener.wait_closed())


async def test_giving_up_leaves_nothing(mosquitto: Mosquitto) -> None:
    """Cancelled at any point, neither end has a link, a socket or a task in the end."""
    carrier, lobby = MqttCarrier(nq.CommunicatorOptions()), Lobby()
    listener = await within(listening(mosquitto, lobby, carrier))
    loop = asyncio.get_running_loop()
    readers: list[Reader] = []

    def factory() -> Reader:
        readers.append(Reader())
        return readers[-1]

    for milliseconds in range(0, 16, 2):
        task = asyncio.create_task(carrier.dial(mosquitto.address, factory, loop))
        await asyncio.wait([task], timeout=milliseconds / 1000)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    for reader in readers:
        if reader.transport is not None:
            reader.transport.abort()
    await until(lambda: all(each.lost for each in lobby.readers), "the end of all links")
    listener.close()
    await within(listener.wait_closed())


async def test_the_end_of_the_server_is_told(mosquitto: Mosquitto) -> None:
    """Its connection breaks: the broker says so to its clients."""
    carrier, lobby = MqttCarrier(nq.CommunicatorOptions()), Lobby()
    listener = await within(listening(mosquitto, lobby, carrier))
    reader = await within(dialled(mosquitto, carrier))
    with tapping(mosquitto.address) as tap:
        claim = next(read(payload) for topic, payload in tap.flushed() if topic == "redpoll/server")
        assert claim is not None
        tap.publish("redpoll/server", pack(Kind.GONE, NOBODY))
        assert reader.lost == []
        tap.publish("redpoll/server", pack(Kind.GONE, claim.link))
    await until(lambda: reader.lost, "the end")
    assert "the server's connection to the MQTT broker ended" in str(reader.lost[0])
    await until(lambda: lobby.readers[0].lost, "the end at the server")
    listener.close()
    await within(listener.wait_closed())


async def test_a_broker_that_ends_while_it_dials_is_told() -> None:
    """As a failure to dial."""
    port = free_port()
    hung_up = asyncio.Event()

    def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        hung_up.set()

    server = await asyncio.start_server(hang_up, "127.0.0.1", port)
    with pytest.raises(DialFailed, match="the MQTT broker"):
        await within(
            MqttCarrier(nq.CommunicatorOptions()).dial(
                Address("tcp", "127.0.0.1", port), Reader, asyncio.get_running_loop()
            )
        )
    assert hung_up.is_set()
    server.close()
    await server.wait_closed()
