"""The core: bytes to messages and decisions, without I/O, clock or randomness."""
