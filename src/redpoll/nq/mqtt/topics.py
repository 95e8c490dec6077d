"""The topics of one server and its clients, all below one prefix."""

from __future__ import annotations

from redpoll.errors import ConfigError
from redpoll.nq.core import checks

__all__ = ["Topics", "is_client"]

#: Characters of a client's name: random bytes in hexadecimal.
_NAME = 16


class Topics:
    """Names of the topics.

    Attributes:
        server: Topic of the server's retained claim.
        everybody: Topic of data for several clients at once.
    """

    def __init__(self, prefix: str) -> None:
        """Check the prefix, and derive the topics.

        Raises:
            ConfigError: It cannot begin a topic.
        """
        problem = checks.prefix(prefix)
        if problem is not None:
            raise ConfigError("prefix", prefix, problem)
        self.server = f"{prefix}/server"
        self.everybody = f"{prefix}/all"
        self._up = f"{prefix}/up/"
        self._down = f"{prefix}/down/"

    @property
    def from_all(self) -> str:
        """Subscription of a server: the data of all clients."""
        return f"{self._up}+"

    def up(self, client: str) -> str:
        """Return the topic to which one client publishes."""
        return self._up + client

    def down(self, client: str) -> str:
        """Return the topic to which the server publishes for one client."""
        return self._down + client

    def sender(self, topic: str) -> str | None:
        """Return the client that publishes there; None if the topic names no valid one."""
        client = topic[len(self._up) :]
        return client if topic.startswith(self._up) and is_client(client) else None


def is_client(name: str) -> bool:
    """Return True if the text is a valid name of a client."""
    return len(name) == _NAME and all(each in "0123456789abcdef" for each in name)
