"""The hub: a broker with a disk, behind a node."""
