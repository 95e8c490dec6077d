"""The directory of wiring: the owners of exchanges and queues by name, and their addresses."""

from redpoll.wiring.directory.client import DirectoryClient
from redpoll.wiring.directory.desired import Watch
from redpoll.wiring.directory.entries import Entry
from redpoll.wiring.directory.server import DEFAULT_LEASE, DEFAULT_PORT, Directory
from redpoll.wiring.directory.table import Bounds

__all__ = ["DEFAULT_LEASE", "DEFAULT_PORT", "Bounds", "Directory", "DirectoryClient", "Entry", "Watch"]
