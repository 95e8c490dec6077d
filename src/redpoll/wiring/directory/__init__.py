"""The directory of wiring: which process has which name, and where it can be reached."""

__all__: list[str] = []
