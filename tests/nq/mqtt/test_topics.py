"""The topics below a prefix."""

from __future__ import annotations

import pytest

from redpoll.errors import ConfigError
from redpoll.nq.mqtt.topics import Topics, is_client

CLIENT = "0123456789abcdef"


def test_topics_stand_below_the_prefix() -> None:
    """Each has its place, and a client's name is read out of where it publishes."""
    topics = Topics("here/and/there")
    assert topics.up(CLIENT) == f"here/and/there/up/{CLIENT}"
    assert topics.down(CLIENT) == f"here/and/there/down/{CLIENT}"
    assert (topics.server, topics.everybody) == ("here/and/there/server", "here/and/there/all")
    assert topics.from_all == "here/and/there/up/+"
    assert topics.sender(topics.up(CLIENT)) == CLIENT


@pytest.mark.parametrize("topic", ["p/up/xyz", "p/up/", "p/down/" + CLIENT, "q/up/" + CLIENT, "p/up/" + CLIENT.upper()])
def test_a_topic_of_nobody_has_no_sender(topic: str) -> None:
    """Clients are called by sixteen digits."""
    assert Topics("p").sender(topic) is None
    assert is_client(CLIENT)


@pytest.mark.parametrize("prefix", ["", "a/#", "+", "a\0", "/a", "a/", "$SYS", "a" * 1025, 7])
def test_a_prefix_that_cannot_begin_a_topic_is_refused(prefix: str) -> None:
    """The error names the option."""
    with pytest.raises(ConfigError, match="prefix="):
        Topics(prefix)
