"""What becomes of publishes that are not confirmed as the server refuses one of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from redpoll.bus.engines.amqp.link import Rejected
from redpoll.bus.engines.amqp.publishing import Publisher, Sending
from redpoll.bus.engines.amqp.wire import Properties
from redpoll.errors import NoRoute, NotAuthorized, NotConfirmed

pytestmark = pytest.mark.asyncio


def sent(exchange: str, key: str = "k", *, again: bool = False) -> Sending:
    """A message that was sent."""
    sending = Sending(exchange, key, Properties(), b"", again=again)
    sending.sent = True
    return sending


def settle(code: int, text: str, *sendings: Sending) -> list[Any]:
    """What each ends with as the server refuses one of them; "waits" is sent again."""
    publisher = Publisher(cast("Any", SimpleNamespace(unanswered=[])))
    publisher.unconfirmed.update(enumerate(sendings, 1))
    publisher.suspend(Rejected(code, text))
    return [type(each.error) if each.ended else "waits" if publisher.withdraw(each) else "" for each in sendings]


async def test_an_exchange_that_is_deleted_behind_one_that_was_taken() -> None:
    """Of several to that exchange the last alone is surely not taken, and what is behind it not read."""
    sendings = [sent("e"), sent("other"), sent("other", again=True), sent("e"), sent("other")]
    ends = settle(404, "NOT_FOUND - no exchange 'e' in vhost '/'", *sendings)
    assert ends == [NotConfirmed, NotConfirmed, "waits", NoRoute, "waits"]
    # None may be told as never sent that was: one that is repeated may be there.
    assert [sendings[2].sent, sendings[4].sent] == [True, False]


async def test_one_that_may_be_repeated_behind_a_refused_one() -> None:
    """It may have been sent on a connection before, and is not told as never sent."""
    sendings = [sent("e", "secret"), sent("e", again=True), sent("e")]
    text = "ACCESS_REFUSED - access to topic 'secret' in exchange 'e' in vhost '/' refused for user 'u'"
    assert settle(403, text, *sendings) == [NotAuthorized, "waits", "waits"]
    assert [each.sent for each in sendings[1:]] == [True, False]


@pytest.mark.parametrize("letter", ["k", "\N{EURO SIGN}"])
async def test_a_text_that_the_server_has_cut(letter: str) -> None:
    """RabbitMQ cuts its texts to 255 bytes: one whose name is cut off is refused once, not sent again without end."""
    key = letter * (252 // len(letter.encode()))
    text = f"ACCESS_REFUSED - access to topic '{key}' in exchange 'e' in vhost '/' refused for user 'u'"
    short = text.encode()[:252].decode(errors="surrogateescape") + "..."
    like = key[:-1] + "x"  # the same, as far as the text goes
    sendings = [sent("e", like), sent("e", like, again=True), sent("e"), sent("e", key, again=True), sent("e")]
    assert settle(403, short, *sendings) == [NotConfirmed, "waits", NotConfirmed, NotAuthorized, "waits"]
    exchange = "e" * 250
    short = f"NOT_FOUND - no exchange '{exchange}' in vhost '/'"[:252] + "..."
    assert settle(404, short, sent(exchange, again=True), sent("e")) == [NoRoute, "waits"]
