"""A server at a broker: it claims its prefix, lets in whom it may, and comes back."""

from __future__ import annotations

import asyncio
import logging
import os

import pytest

from redpoll import nq
from redpoll.address import Address
from redpoll.errors import ConfigError, DialFailed
from redpoll.nq.mqtt import broker as broker_module
from redpoll.nq.mqtt import listener as module
from redpoll.nq.mqtt.carrier import MqttCarrier
from redpoll.nq.mqtt.payloads import KEY, Kind, pack, read
from tests.node.support import until, within
from tests.nq.mqtt.support import Lobby, Mosquitto, dialled, listening, tapping
from tests.ports import free_port

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("quiet_loop")]

CLIENT = "0123456789abcdef"


async def test_a_link_carries_bytes_both_ways(mosquitto: Mosquitto) -> None:
    """Who comes in is known by its name, and the end of one end is that of the other."""
    carrier, lobby = MqttCarrier(nq.CommunicatorOptions()), Lobby()
    listener = await within(listening(mosquitto, lobby, carrier))
    assert (listener.addresses, listener.port) == ([mosquitto.address], mosquitto.address.port)
    assert listener.descriptors == []
    reader = await within(dialled(mosquitto, carrier))
    (there,) = lobby.readers
    assert lobby.remotes[0].host.startswith("mqtt-")
    assert reader.transport is not None
    assert there.transport is not None
    reader.transport.write(b"to the server")
    there.transport.write(b"to the client")
    await until(lambda: there.got and reader.got, "bytes")
    assert (bytes(there.got), bytes(reader.got)) == (b"to the server", b"to the client")
    reader.transport.write(b", the last")
    reader.transport.close()
    await until(lambda: there.lost and reader.lost, "the end")
    assert there.got.endswith(b", the last")
    assert (there.lost, reader.lost) == ([None], [None])
    listener.close()
    await within(listener.wait_closed())


async def test_without_a_broker_it_does_not_open() -> None:
    """The error names the broker, and what the system said is its cause."""
    port = free_port()
    listener = MqttCarrier(nq.CommunicatorOptions()).listener(Lobby(), asyncio.get_running_loop(), 1)
    text = f"host='127.0.0.1:{port}': a server cannot use the MQTT broker"
    with pytest.raises(ConfigError, match=text) as caught:
        await within(listener.open(("127.0.0.1",), port, lambda _: None))
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)
    assert listener.addresses == []
    assert listener.port == 0


async def test_a_broker_that_stands_still_is_none(mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listening fails after some seconds."""
    monkeypatch.setattr(broker_module, "CONNECT_TIMEOUT", 0.2)
    mosquitto.freeze()
    listener = MqttCarrier(nq.CommunicatorOptions()).listener(Lobby(), asyncio.get_running_loop(), 1)
    with pytest.raises(ConfigError, match="a server cannot use the MQTT broker"):
        await within(listener.open(("127.0.0.1",), mosquitto.address.port, lambda _: None))


@pytest.mark.parametrize(("hosts", "port"), [(("127.0.0.1", "::1"), 1883), ((), 1883), (("127.0.0.1",), 0)])
async def test_it_has_one_address(hosts: tuple[str, ...], port: int) -> None:
    """Several hosts, none, or any free port make no sense at a broker."""
    listener = MqttCarrier(nq.CommunicatorOptions()).listener(Lobby(), asyncio.get_running_loop(), 1)
    with pytest.raises(ConfigError, match="one address: the broker's"):
        await listener.open(hosts, port, lambda _: None)


async def test_what_speaks_against_an_address_is_raised_first(mosquitto: Mosquitto) -> None:
    """Before anything is connected to."""
    listener = MqttCarrier(nq.CommunicatorOptions()).listener(Lobby(), asyncio.get_running_loop(), 1)

    def check(address: Address) -> None:
        raise ConfigError("host", str(address), "not this one")

    with pytest.raises(ConfigError, match="not this one"):
        await listener.open(("127.0.0.1",), mosquitto.address.port, check)


async def test_who_finds_no_place_is_told(mosquitto: Mosquitto) -> None:
    """Its dial fails at once."""
    carrier, lobby = MqttCarrier(nq.CommunicatorOptions()), Lobby(places=1)
    listener = await within(listening(mosquitto, lobby, carrier))
    reader = await within(dialled(mosquitto, carrier))
    with pytest.raises(DialFailed, match="the server accepts no more links"):
        await within(dialled(mosquitto, carrier))
    assert reader.transport is not None
    reader.transport.abort()
    await until(lambda: lobby.readers[0].lost, "the end")
    listener.close()
    await within(listener.wait_closed())


async def test_links_stay_when_it_lets_nobody_in_any_more(mosquitto: Mosquitto) -> None:
    """Until they end; who dials is told at once that there is no server."""
    carrier, lobby = MqttCarrier(nq.CommunicatorOptions()), Lobby()
    listener = await within(listening(mosquitto, lobby, carrier))
    reader = await within(dialled(mosquitto, carrier))
    listener.close()
    await within(listener.wait_closed())
    with pytest.raises(DialFailed, match="no server serves 'redpoll' at this MQTT broker"):
        await within(dialled(mosquitto, carrier))
    assert reader.transport is not None
    reader.transport.write(b"still there")
    await until(lambda: lobby.readers[0].got, "bytes")
    reader.transport.close()
    await until(lambda: lobby.readers[0].lost, "the end")


async def test_it_comes_back_with_the_broker(mosquitto: Mosquitto, caplog: pytest.LogCaptureFixture) -> None:
    """All links end with it; it is logged once each time, and who dials then is let in."""
    carrier, lobby = MqttCarrier(nq.CommunicatorOptions()), Lobby()
    listener = await within(listening(mosquitto, lobby, carrier))
    for _ in range(3):
        reader = await within(dialled(mosquitto, carrier))
        mosquitto.kill()
        await reader.ends()
        await lobby.readers[-1].ends()
        with pytest.raises(DialFailed, match="the MQTT broker"):
            await within(dialled(mosquitto, carrier))
        mosquitto.start()
        await until(lambda: listener.ready, "it to come back")
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 3
    listener.close()
    await within(listener.wait_closed())


async def test_it_comes_back_though_nobody_was_let_in_yet(mosquitto: Mosquitto) -> None:
    """The broker ends between opening and the first client."""
    carrier = MqttCarrier(nq.CommunicatorOptions())
    listener = carrier.listener(Lobby(), asyncio.get_running_loop(), 1)
    await within(listener.open(("127.0.0.1",), mosquitto.address.port, lambda _: None))
    mosquitto.restart()
    await until(lambda: not listener.ready, "the loss")
    listener.accept()
    await until(lambda: listener.ready, "it to come back")
    reader = await within(dialled(mosquitto, carrier))
    assert reader.transport is not None
    reader.transport.abort()
    listener.close()
    await within(listener.wait_closed())


async def test_it_may_be_closed_while_the_broker_is_gone(mosquitto: Mosquitto) -> None:
    """It does not come back then."""
    listener = await within(listening(mosquitto, Lobby(), MqttCarrier(nq.CommunicatorOptions())))
    mosquitto.kill()
    await until(lambda: not listener.ready, "the loss")
    listener.close()
    await within(listener.wait_closed())


async def test_a_client_that_is_gone_ends_its_link(mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker says so for it."""
    carrier, lobby = MqttCarrier(nq.CommunicatorOptions()), Lobby()
    listener = await within(listening(mosquitto, lobby, carrier))
    await within(dialled(mosquitto, carrier))
    name = lobby.remotes[0].host.removeprefix("mqtt-")
    # The broker ends a connection when another one comes by its name, as if it had broken.
    thief = broker_module.Broker(
        mosquitto.address, broker_module.Login(), asyncio.get_running_loop(), name, print, print, print
    )
    await within(thief.connect())
    await until(lambda: lobby.readers[0].lost, "the end")
    assert "its connection to the MQTT broker ended" in str(lobby.readers[0].lost[0])
    thief.close()
    listener.close()
    await within(listener.wait_closed())


async def test_garbage_is_counted_and_harmless(mosquitto: Mosquitto) -> None:
    """On each topic, of each kind; a link that is there reads none of it, and others may dial."""
    carrier, lobby = MqttCarrier(nq.CommunicatorOptions()), Lobby(places=3)
    listener = await within(listening(mosquitto, lobby, carrier))
    reader = await within(dialled(mosquitto, carrier))
    with tapping(mosquitto.address) as tap:
        for topic in (f"up/{CLIENT}", "up/no name", f"down/{CLIENT}", "all", "server"):
            tap.publish(f"redpoll/{topic}", b"")
            tap.publish(f"redpoll/{topic}", os.urandom(100))
            for kind in Kind:
                if topic != "server" or kind is not Kind.CLAIM:
                    tap.publish(f"redpoll/{topic}", pack(kind, os.urandom(KEY), 3, 1 << 60) + bytes(50))
    await until(lambda: len(lobby.readers) == 2, "the stranger's link")
    assert len(lobby.readers) == 2, "one stranger opened a link, and is bounded like any other"
    assert not reader.got
    assert not reader.lost
    assert reader.transport is not None
    reader.transport.write(b"fine")
    await until(lambda: lobby.readers[0].got == b"fine", "bytes")
    second = await within(dialled(mosquitto, carrier))
    for each in (second, reader, *lobby.readers):
        assert each.transport is not None
        each.transport.abort()
    listener.close()
    await within(listener.wait_closed())


def found(came: tuple[str, bytes]) -> bool:
    """Whether a server claims its prefix."""
    payload = read(came[1])
    return payload is not None and payload.kind is Kind.CLAIM


async def test_its_claim_comes_back_when_somebody_removes_it(mosquitto: Mosquitto) -> None:
    """Whoever dials finds it again."""
    carrier = MqttCarrier(nq.CommunicatorOptions())
    listener = await within(listening(mosquitto, Lobby(), carrier))
    with tapping(mosquitto.address) as tap:
        for payload in (b"", b"garbage"):
            tap.publish("redpoll/server", payload, retain=True)
            tap.came.clear()
            await tap.meanwhile(lambda: any(found(each) for each in tap.came))
    listener.close()
    await within(listener.wait_closed())


async def test_a_second_server_is_found_out(mosquitto: Mosquitto) -> None:
    """It does not open; the first one goes on."""
    carrier, lobby = MqttCarrier(nq.CommunicatorOptions()), Lobby()
    first = await within(listening(mosquitto, lobby, carrier))
    with pytest.raises(ConfigError, match="another server serves it at this MQTT broker"):
        await within(listening(mosquitto, Lobby(), carrier))
    reader = await within(dialled(mosquitto, carrier))
    assert reader.transport is not None
    reader.transport.close()
    await until(lambda: lobby.readers[0].lost, "the end")
    first.close()
    await within(first.wait_closed())


@pytest.mark.parametrize("number", [2, 2**64 - 1])
async def test_a_claim_that_nobody_stands_by(
    mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """However high, and however often it was said, it is answered by a higher one: links stay, and others are let in."""
    monkeypatch.setattr(module, "PROBING", 0.3)
    given_up: list[ConfigError] = []
    carrier, lobby = MqttCarrier(nq.CommunicatorOptions(), given_up=given_up.append), Lobby()
    listener = await within(listening(mosquitto, lobby, carrier))
    reader = await within(dialled(mosquitto, carrier))
    with tapping(mosquitto.address) as tap:
        for _ in range(10):
            tap.publish("redpoll/server", pack(Kind.CLAIM, bytes(KEY), number), retain=True)
        await until(lambda: listener._dispute, "it to ask for the one that claimed")
        tap.came.clear()
        await tap.meanwhile(lambda: any(found(each) for each in tap.came))
        (claim,) = [read(data) for _, data in tap.flushed() if found(("", data))]
    assert claim is not None
    assert claim.number == min(number + 1, 2**64 - 1)
    assert not given_up
    second = await within(dialled(mosquitto, carrier))
    for each in (reader, second):
        assert not each.lost
        assert each.transport is not None
        each.transport.abort()
    listener.close()
    await within(listener.wait_closed())


async def test_it_may_be_closed_while_it_asks_for_the_one_that_claimed(mosquitto: Mosquitto) -> None:
    """It does not claim again."""
    listener = await within(listening(mosquitto, Lobby(), MqttCarrier(nq.CommunicatorOptions())))
    with tapping(mosquitto.address) as tap:
        tap.publish("redpoll/server", pack(Kind.CLAIM, bytes(KEY), 7))
        await until(lambda: listener._dispute, "it to ask for the one that claimed")
        listener.close()
        await within(listener.wait_closed())
        # The broker reads its connections in no particular order.
        await until(lambda: [read(data) for _, data in tap.flushed()][-1:] == [None], "it to withdraw its claim")


async def test_of_two_that_could_not_know_one_yields(mosquitto: Mosquitto, caplog: pytest.LogCaptureFixture) -> None:
    """It says so in the log and to its node, and lets nobody in; the other one serves."""
    given_up: list[ConfigError] = []
    carrier = MqttCarrier(nq.CommunicatorOptions(), given_up=given_up.append)
    loop = asyncio.get_running_loop()
    pair = [carrier.listener(Lobby(), loop, 1) for _ in range(2)]
    for each in pair:
        await within(each.open(("127.0.0.1",), mosquitto.address.port, lambda _: None))
    for each in pair:
        each.accept()
    await until(lambda: [each.ready for each in pair].count(True) == 1, "one to yield")
    assert "this server stopped serving" in caplog.text
    assert [each.field for each in given_up] == ["prefix"]
    reader = await within(dialled(mosquitto, carrier))
    assert reader.transport is not None
    reader.transport.abort()
    await asyncio.sleep(0)
    for each in pair:
        each.close()
        await within(each.wait_closed())


async def test_a_broker_that_is_lost_as_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is waited for another server: nobody takes that for a connection, so it comes back once more."""
    monkeypatch.setattr(module, "PROBING", 0)
    loop = asyncio.get_running_loop()
    address = Address("tcp", "127.0.0.1", 1)
    listener = MqttCarrier(nq.CommunicatorOptions()).listener(Lobby(), loop, 1)
    broker = broker_module.Broker(
        address, broker_module.Login(), loop, CLIENT, lambda *_: None, lambda: None, listener._lost
    )
    listener._broker = broker
    answers = loop.create_task(listener._answers(broker))
    await asyncio.sleep(0)
    # The end of the time is due already.
    listener._lost("it hung up")
    with pytest.raises(DialFailed, match="ended"):
        await within(answers)


async def test_who_stood_still_is_taken_over_from(mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that the broker kept, and nobody answers for, is in nobody's way."""
    monkeypatch.setattr(module, "PROBING", 0.05)
    with tapping(mosquitto.address) as tap:
        tap.publish("redpoll/server", pack(Kind.CLAIM, b"vanished", 7), retain=True)
        listener = await within(listening(mosquitto, Lobby(), MqttCarrier(nq.CommunicatorOptions())))
        last = read(tap.flushed()[-1][1])
    assert last is not None
    assert (last.kind, last.number) == (Kind.CLAIM, 8)
    listener.close()
    await within(listener.wait_closed())
