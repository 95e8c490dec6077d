"""The directory of wiring: who has which exchange and which queue, and where that can be reached."""

from redpoll.wiring.directory.client import DirectoryClient
from redpoll.wiring.directory.entries import Entry
from redpoll.wiring.directory.server import DEFAULT_LEASE, DEFAULT_PORT, Directory
from redpoll.wiring.directory.table import Bounds
from redpoll.wiring.directory.wishes import Watch

__all__ = ["DEFAULT_LEASE", "DEFAULT_PORT", "Bounds", "Directory", "DirectoryClient", "Entry", "Watch"]
