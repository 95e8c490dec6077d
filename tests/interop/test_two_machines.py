"""redpoll and libchirp speak TLS as they do between two machines: neither side sees a loopback address."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from tests.interop.driven_node import CallError, DrivenNode
from tests.interop.libchirp_node import LibchirpNode, libchirp_node
from tests.interop.namespaces import Namespace, two_namespaces
from tests.interop.nodes import within_bound

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from redpoll.testing.certificates import Certificates

pytestmark = [pytest.mark.interop, pytest.mark.asyncio]

Who = Literal["redpoll", "libchirp"]

PORT = 2998
TIMEOUT = 2.0
SIZES = (0, 5, 20_000, 1_000_000)

#: libchirp as it is built with LibreSSL or OpenSSL 1.0: the system's OpenSSL, told to end at TLS 1.2.
ENDS_AT_1_2 = """\
openssl_conf = all
[all]
ssl_conf = ssl
[ssl]
system_default = defaults
[defaults]
MaxProtocol = TLSv1.2
"""

each_dials = pytest.mark.parametrize("dials", ["redpoll", "libchirp"])


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[Namespace, Namespace]]:
    """That of libchirp and that of redpoll."""
    with two_namespaces() as both:
        yield both


@pytest.fixture
def ends_at_1_2(tmp_path: Path) -> dict[str, str]:
    """The environment of a process whose OpenSSL ends at TLS 1.2."""
    file = tmp_path / "openssl.cnf"
    file.write_text(ENDS_AT_1_2)
    return {"OPENSSL_CONF": str(file)}


class Both:
    """A node of each kind, each on its own machine."""

    def __init__(self, chirp: LibchirpNode, redpoll: DrivenNode, machines: tuple[Namespace, Namespace]) -> None:
        self.nodes: dict[Who, DrivenNode] = {"libchirp": chirp, "redpoll": redpoll}
        self.hosts: dict[Who, str] = {"libchirp": machines[0].host, "redpoll": machines[1].host}

    async def send(self, sender: Who, data: bytes) -> None:
        """Send from one to the other, and see that it came as it is and from where it was sent."""
        await self.try_to_send(sender, data)
        received = await self.nodes[other(sender)].received()
        assert received.data == data
        assert (received.address, received.port) == (self.hosts[sender], PORT)

    async def try_to_send(self, sender: Who, data: bytes) -> None:
        """Send from one to the other, whatever becomes of it."""
        await self.nodes[sender].send(self.hosts[other(sender)], PORT, data)

    async def links(self) -> list[list[str] | None]:
        """Version and cipher of each of redpoll's links."""
        outcome = await within_bound(self.nodes["redpoll"].begin("links"))
        found: list[list[str] | None] = outcome["links"]
        return found


def other(who: Who) -> Who:
    """The other kind."""
    return "libchirp" if who == "redpoll" else "redpoll"


@contextlib.asynccontextmanager
async def both(
    machines: tuple[Namespace, Namespace],
    *,
    chirp: Path | None,
    redpoll: Path | None,
    dh: Path,
    redpoll_dh: bool = True,
    environment: dict[str, str] | None = None,
) -> AsyncIterator[Both]:
    """Both nodes, running, with their certificates; one without any does not encrypt."""
    there, here = machines
    program = str(Path(__file__).with_name("redpoll_peer.py"))
    command = [*here.within, sys.executable, program, "--host", here.host, "--port", str(PORT)]
    command += ["--loop", type(asyncio.get_running_loop()).__module__.partition(".")[0], "--timeout", str(TIMEOUT)]
    if redpoll is not None:
        command += ["--certificate", str(redpoll), *(["--dh", str(dh)] if redpoll_dh else [])]
    node = DrivenNode(PORT, command)
    async with libchirp_node(
        host=there.host,
        port=PORT,
        within=there.within,
        timeout=TIMEOUT,
        certificate=chirp,
        dh=dh,
        environment=environment,
    ) as peer:
        try:
            await node.start()
            yield Both(peer, node, machines)
        finally:
            await node.kill()


@each_dials
@pytest.mark.parametrize("key", ["ec", "rsa-2048"])
async def test_tls_1_3(
    redpoll_pki: Certificates, machines: tuple[Namespace, Namespace], dials: Who, key: Literal["ec", "rsa-2048"]
) -> None:
    """Messages of all sizes go both ways over one link of TLS 1.3, with keys of any kind, whoever dialled."""
    chirp, redpoll = redpoll_pki.issue("chirp", key=key), redpoll_pki.issue("redpoll", key=key)
    async with both(machines, chirp=chirp, redpoll=redpoll, dh=redpoll_pki.dh) as pair:
        for size in SIZES:
            await pair.send(dials, bytes(size))
            await pair.send(other(dials), bytes(size))
        assert await pair.links() == [["TLSv1.3", "TLS_AES_256_GCM_SHA384"]]


@each_dials
async def test_tls_1_2(
    redpoll_pki: Certificates, machines: tuple[Namespace, Namespace], ends_at_1_2: dict[str, str], dials: Who
) -> None:
    """The same with a libchirp that ends at TLS 1.2, which has no key exchange but DHE."""
    chirp, redpoll = redpoll_pki.issue("chirp", key="rsa-2048"), redpoll_pki.issue("redpoll", key="rsa-2048")
    async with both(machines, chirp=chirp, redpoll=redpoll, dh=redpoll_pki.dh, environment=ends_at_1_2) as pair:
        for size in SIZES:
            await pair.send(dials, bytes(size))
            await pair.send(other(dials), bytes(size))
        assert await pair.links() == [["TLSv1.2", "DHE-RSA-AES256-GCM-SHA384"]]


async def test_tls_1_2_needs_parameters_of_who_is_dialled(
    redpoll_pki: Certificates, machines: tuple[Namespace, Namespace], ends_at_1_2: dict[str, str]
) -> None:
    """Such a libchirp cannot dial a redpoll node without dh_params; that node can dial it, by the parameters there."""
    chirp, redpoll = redpoll_pki.issue("chirp", key="rsa-2048"), redpoll_pki.issue("redpoll", key="rsa-2048")
    async with both(
        machines, chirp=chirp, redpoll=redpoll, dh=redpoll_pki.dh, redpoll_dh=False, environment=ends_at_1_2
    ) as pair:
        with pytest.raises(CallError):
            await pair.try_to_send("libchirp", b"there")
        await pair.send("redpoll", b"there")
        await pair.send("libchirp", b"and back")
        assert await pair.links() == [["TLSv1.2", "DHE-RSA-AES256-GCM-SHA384"]]


@each_dials
@pytest.mark.parametrize("at_1_2", [False, True], ids=["1.3", "1.2"])
async def test_another_ca(
    redpoll_pki: Certificates,
    machines: tuple[Namespace, Namespace],
    ends_at_1_2: dict[str, str],
    dials: Who,
    at_1_2: bool,
) -> None:
    """Certificates of two CAs bring no link about, and nothing arrives; redpoll says why."""
    chirp = redpoll_pki.another().issue("chirp", key="rsa-2048")
    redpoll = redpoll_pki.issue("redpoll", key="rsa-2048")
    environment = ends_at_1_2 if at_1_2 else None
    async with both(machines, chirp=chirp, redpoll=redpoll, dh=redpoll_pki.dh, environment=environment) as pair:
        with pytest.raises(CallError) as caught:
            await pair.try_to_send(dials, b"there")
        if dials == "redpoll":
            assert caught.value.error == "NotSent"
            assert "TLSError: " in caught.value.text
            assert "its certificate is not signed by a CA in" in caught.value.text
        assert await pair.nodes[other(dials)].nothing_received(0.1)


@each_dials
@pytest.mark.parametrize("plain", ["redpoll", "libchirp"])
async def test_plain_against_tls(
    redpoll_pki: Certificates, machines: tuple[Namespace, Namespace], dials: Who, plain: Who
) -> None:
    """Where only one of them encrypts nothing arrives; a redpoll node says why, unless it meets a libchirp that is silent."""
    chirp = redpoll_pki.issue("chirp") if plain != "libchirp" else None
    redpoll = redpoll_pki.issue("redpoll") if plain != "redpoll" else None
    async with both(machines, chirp=chirp, redpoll=redpoll, dh=redpoll_pki.dh) as pair:
        with pytest.raises(CallError) as caught:
            await pair.try_to_send(dials, b"there")
        if dials == plain == "redpoll":
            # OpenSSL sends no alert to who does not even begin as TLS does, and libchirp does not close.
            assert caught.value.error == "Expired"
        elif dials == "redpoll":
            assert caught.value.error == "NotSent"
            assert "the peer sends plaintext, and this node expects TLS" in caught.value.text
        assert await pair.nodes[other(dials)].nothing_received(0.1)
