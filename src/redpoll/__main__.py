"""`python -m redpoll` is the `redpoll` command."""

from redpoll.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
