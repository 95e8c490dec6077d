"""One connection to a broker: made, refused, encrypted, lost."""

from __future__ import annotations

import asyncio
import builtins
from pathlib import Path
from typing import Any

import pytest

from redpoll import nq
from redpoll.address import Address
from redpoll.errors import ConfigError, DialFailed, TLSError, UsageError
from redpoll.nq.mqtt import broker as module
from redpoll.nq.mqtt.broker import Broker, Login
from redpoll.testing.certificates import Certificates
from tests.node.support import until, within
from tests.nq.mqtt.support import START_PATIENCE, Mosquitto, passwords
from tests.ports import free_port

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("quiet_loop")]


class Notes:
    """A connection, and what it told."""

    def __init__(self, address: Address, login: Login | None = None, name: str = "test") -> None:
        self.came: list[tuple[str, bytes]] = []
        self.writable = 0
        self.lost: list[str] = []
        loop = asyncio.get_running_loop()
        self.broker = Broker(address, login or Login(), loop, name, self._receive, self._write, self.lost.append)

    def _receive(self, topic: str, payload: bytes) -> None:
        self.came.append((topic, payload))

    def _write(self) -> None:
        self.writable += 1

    async def loses(self) -> None:
        """The connection ends."""
        await until(lambda: self.lost, "the end")

    async def gets(self, count: int) -> list[tuple[str, bytes]]:
        """What came, once it is so much."""
        await until(lambda: len(self.came) >= count, "payloads")
        return self.came


async def test_what_is_published_comes(mosquitto: Mosquitto) -> None:
    """To who subscribed to its topic, itself too, in order."""
    one = Notes(mosquitto.address)
    assert not one.broker.ready
    await within(one.broker.connect())
    await within(one.broker.subscribe("a/+", "b"))
    sent = [("a/1", b"x" * size) for size in (0, 1, 100_000, 5)] + [("b", b"y")]
    for topic, payload in sent:
        one.broker.publish(topic, payload)
    one.broker.publish("c", b"nobody's")
    assert await one.gets(len(sent)) == sent
    one.broker.close()
    one.broker.close()
    assert not one.broker.ready
    one.broker.publish("a/1", b"late")
    assert one.lost == []


async def test_it_is_ready_again_when_the_system_took_all(mosquitto: Mosquitto) -> None:
    """While a payload waits it is not, and who may go on is called."""
    one = Notes(mosquitto.address)
    await within(one.broker.connect())
    await within(one.broker.subscribe("t"))
    mosquitto.freeze()

    def ready() -> bool:
        return one.broker.ready

    count = 0
    while ready():
        one.broker.publish("t", bytes(1 << 20))
        count += 1
    assert one.writable == 0
    mosquitto.thaw()
    await until(lambda: one.writable, "it to be writable")
    assert ready()
    await one.gets(count)
    one.broker.close()


async def test_nobody_there_is_told_in_words() -> None:
    """The error names the address and the reason."""
    port = free_port()
    one = Notes(Address("tcp", "127.0.0.1", port))
    with pytest.raises(DialFailed, match=f"cannot connect to 127.0.0.1:{port}: the MQTT broker: Connection refused"):
        await within(one.broker.connect())
    one.broker.close()


async def test_a_broker_that_says_nothing_is_given_up(mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connecting fails after some seconds."""
    monkeypatch.setattr(module, "CONNECT_TIMEOUT", 0.1)
    mosquitto.freeze()
    one = Notes(mosquitto.address, Login())
    with pytest.raises(DialFailed, match=r"the MQTT broker said nothing for 0.1 s"):
        await within(one.broker.connect())
    one.broker.close()


async def test_giving_up_leaves_nothing(mosquitto: Mosquitto) -> None:
    """Cancelled in any turn of the loop, its socket is closed; the fixtures look."""
    for turns in range(12):
        one = Notes(mosquitto.address, name=f"test {turns}")
        task = asyncio.create_task(one.broker.connect())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        one.broker.close()


async def test_the_end_of_the_broker_is_told(mosquitto: Mosquitto) -> None:
    """Once, with the reason."""
    one = Notes(mosquitto.address)
    await within(one.broker.connect())
    mosquitto.kill()
    await until(lambda: one.lost, "the end")
    assert "the connection to the MQTT broker ended" in one.lost[0]
    one.broker.publish("t", b"x")
    one.broker.close()
    assert len(one.lost) == 1


async def test_an_end_before_it_is_seen_that_it_was_let_in(mosquitto: Mosquitto) -> None:
    """The connection that ends in the very turn in which the broker answers is none."""
    one = Notes(mosquitto.address)
    client = one.broker._client
    told: Any = client.on_connect

    def told_and_ended(*args: Any) -> None:
        # Before whoever waits for the answer goes on.
        asyncio.get_running_loop().call_soon(client.disconnect)
        told(*args)

    client.on_connect = told_and_ended
    with pytest.raises(DialFailed, match="the connection to the MQTT broker ended"):
        await within(one.broker.connect())
    assert not one.broker.ready
    one.broker.close()
    assert one.lost == []


async def test_who_subscribes_after_the_end_is_told(mosquitto: Mosquitto) -> None:
    """There is no answer to wait for."""
    one = Notes(mosquitto.address)
    await within(one.broker.connect())
    mosquitto.kill()
    await one.loses()
    with pytest.raises(DialFailed, match="the connection to the MQTT broker ended"):
        await within(one.broker.subscribe("t"))


async def test_a_broker_that_stands_still_is_taken_for_dead(
    mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not answer when it is asked whether it is there."""
    monkeypatch.setattr(module, "KEEPALIVE", 1)
    one = Notes(mosquitto.address)
    await within(one.broker.connect())
    mosquitto.freeze()
    await until(lambda: one.lost, "the end")


async def test_the_will_is_published_unless_it_closed(mosquitto: Mosquitto) -> None:
    """A connection that breaks leaves it to the broker, which may keep it."""
    watcher = Notes(mosquitto.address, name="watcher")
    await within(watcher.broker.connect())
    await within(watcher.broker.subscribe("will/#"))
    for name in ("closes", "breaks"):
        one = Notes(mosquitto.address, name=name)
        await within(one.broker.connect(will=(f"will/{name}", b"gone", False)))
        if name == "closes":
            one.broker.close()
        else:
            other = Notes(mosquitto.address, name=name)
            # The broker ends the one that had the name before.
            await within(other.broker.connect())
            await one.loses()
            other.broker.close()
    assert await watcher.gets(1) == [("will/breaks", b"gone")]
    watcher.broker.close()


@pytest.mark.parametrize("secure", [False, True])
async def test_what_was_published_is_read_though_the_broker_sends_meanwhile(
    request: pytest.FixtureRequest, redpoll_pki: Certificates, monkeypatch: pytest.MonkeyPatch, secure: bool
) -> None:
    """A closed connection takes what the broker sends until it has read all: it drops the rest of one that does not."""
    monkeypatch.setattr(module, "ENDING", START_PATIENCE)
    mosquitto: Mosquitto = request.getfixturevalue("encrypted" if secure else "mosquitto")
    login = Login(nq.SecurityOptions(cert=redpoll_pki.ca) if secure else None)
    watcher, one = (Notes(mosquitto.address, login, name) for name in ("watcher", "one"))
    for each in (watcher, one):
        await within(each.broker.connect())
        await within(each.broker.subscribe("t"))
    mosquitto.freeze()
    sent = [("t", b"%d" % number) for number in range(100)]
    for topic, payload in sent:
        one.broker.publish(topic, payload)
    one.broker.close()
    mosquitto.thaw()
    assert await watcher.gets(len(sent)) == sent
    watcher.broker.close()


async def test_a_broker_that_stands_still_does_not_keep_a_closed_connection(
    mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket is closed after a limited time."""
    monkeypatch.setattr(module, "ENDING", 0.05)
    login = Login()
    one = Notes(mosquitto.address, login)
    await within(one.broker.connect())
    mosquitto.freeze()
    one.broker.close()
    assert login.ending
    await until(lambda: not login.ending, "the end")


async def test_who_is_not_let_in_is_told(tmp_path: Path) -> None:
    """With a wrong password, or none; with the right one it is let in."""
    broker = Mosquitto(tmp_path, "allow_anonymous false", f"password_file {passwords(tmp_path, 'ann')}")
    broker.start()
    try:
        for login in (Login(), Login(username="ann", password="wrong")):
            one = Notes(broker.address, login)
            with pytest.raises(DialFailed, match="the MQTT broker refuses this user"):
                await within(one.broker.connect())
            one.broker.close()
        one = Notes(broker.address, Login(username="ann", password="secret"))
        await within(one.broker.connect())
        one.broker.close()
    finally:
        broker.kill()


async def test_tls_carries_the_same(encrypted: Mosquitto, redpoll_pki: Certificates) -> None:
    """With the CA of the broker's certificate; large payloads come whole."""
    one = Notes(encrypted.address, Login(nq.SecurityOptions(cert=redpoll_pki.ca)))
    await within(one.broker.connect())
    await within(one.broker.subscribe("t"))
    sent = [("t", bytes([index]) * 70_000) for index in range(50)]
    for topic, payload in sent:
        one.broker.publish(topic, payload)
    assert await one.gets(len(sent)) == sent
    one.broker.close()


async def test_a_certificate_of_somebody_is_not_trusted(encrypted: Mosquitto, redpoll_pki: Certificates) -> None:
    """Of another CA, or for another name, or none of those that the system trusts."""
    localhost = Address("tcp", "localhost", encrypted.address.port)
    for address, ca, text in (
        (encrypted.address, redpoll_pki.another().ca, "is not signed by a CA in"),
        (encrypted.address, None, "is not signed by a CA in the system's CAs"),
        (localhost, redpoll_pki.ca, "is not valid for localhost"),
    ):
        one = Notes(address, Login(nq.SecurityOptions(cert=ca)))
        with pytest.raises(TLSError, match=text):
            await within(one.broker.connect())
        one.broker.close()


async def test_plain_and_encrypted_do_not_meet(mosquitto: Mosquitto, redpoll_pki: Certificates) -> None:
    """Whoever expects TLS of a plain broker is told."""
    one = Notes(mosquitto.address, Login(nq.SecurityOptions(cert=redpoll_pki.ca)))
    with pytest.raises(TLSError, match="the MQTT broker speaks no TLS"):
        await within(one.broker.connect())
    one.broker.close()


async def test_encrypted_and_plain_do_not_meet(encrypted: Mosquitto) -> None:
    """Whoever speaks plaintext to a broker that expects TLS is told."""
    one = Notes(encrypted.address, Login())
    with pytest.raises(TLSError, match="the MQTT broker wants TLS, and this end speaks plaintext to it"):
        await within(one.broker.connect())
    one.broker.close()


@pytest.mark.parametrize("secure", [False, True])
async def test_a_broker_that_hangs_up(redpoll_pki: Certificates, secure: bool) -> None:
    """Where both agree it is no failure of TLS: it is tried again."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    address = Address("tcp", "127.0.0.1", server.sockets[0].getsockname()[1])
    one = Notes(address, Login(nq.SecurityOptions(cert=redpoll_pki.ca) if secure else None))
    with pytest.raises(DialFailed, match="MQTT broker"):
        await within(one.broker.connect())
    one.broker.close()
    server.close()
    await server.wait_closed()


async def test_a_certificate_that_is_no_file_is_a_config_error(mosquitto: Mosquitto, tmp_path: Path) -> None:
    """It names the option; a connection fails by it as one that is tried again."""
    login = Login(nq.SecurityOptions(cert=tmp_path / "none"))
    with pytest.raises(ConfigError, match="certificate="):
        login.context()
    with pytest.raises(DialFailed, match=r"the MQTT broker: certificate=.*none'"):
        Notes(mosquitto.address, login)


async def test_without_paho_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is imported only here."""
    whole = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("paho"):
            raise ImportError(name)
        return whole(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"pip install 'redpoll\[mqtt\]'"):
        Notes(Address("tcp", "127.0.0.1", 1))
