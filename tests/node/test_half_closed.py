"""Encrypted links whose other end closes its own direction without a word of TLS: what it did not take is told truly."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from redpoll import Message, NotConfirmed, NotSent
from redpoll.testing.certificates import Certificates
from tests.node.encrypted import Make, encrypted
from tests.node.secure_link import SecureLink, secure_dialling
from tests.node.support import Inbox, settle, until, within

pytestmark = pytest.mark.asyncio

OPTIONS: dict[str, Any] = {"keepalive": 0.15, "timeout": None}
ADDRESS = "127.0.0.1:16384"


def close_half(link: SecureLink) -> None:
    """Send the end of the stream below TLS, which says nothing of it."""
    with socket.socket(fileno=os.dup(link.writer.get_extra_info("socket").fileno())) as copy:
        copy.shutdown(socket.SHUT_WR)


@contextlib.asynccontextmanager
async def half_closed(pki: Certificates, issued: Make, inbox: Inbox) -> AsyncIterator[tuple[Any, SecureLink]]:
    """A node with a link whose other end does not read, and the link."""
    async with encrypted(inbox, tls=issued(), **OPTIONS) as node:
        async with secure_dialling(node, pki.issue()) as link:
            await until(lambda: any(peer.connected for peer in node.peers), "the link")
            yield node, link


@pytest.mark.parametrize("reads", [True, False])
async def test_what_was_to_be_written(redpoll_pki: Certificates, issued: Make, reads: bool) -> None:
    """What waits for an end that has closed its direction fails as not confirmed; what was not begun as not sent."""
    inbox = Inbox()
    async with half_closed(redpoll_pki, issued, inbox) as (node, link):
        if not reads:
            link.writer.transport.pause_reading()  # type: ignore[attr-defined]
        sizes = (90_000,) * 60
        futures = [node.send(Message(bytes(size), ADDRESS), dial="once") for size in sizes]
        many = node.stats().in_flight
        assert 0 < many < len(futures)
        close_half(link)
        await within(settle(*futures))
        errors = [future.exception() for future in futures]
        assert {type(error) for error in errors} == {NotConfirmed, NotSent}
        for error in errors:
            assert isinstance(error, NotConfirmed | NotSent)
            assert error.sent is isinstance(error, NotConfirmed)
        assert [type(error) for error in errors[:many]] == [NotConfirmed] * many
