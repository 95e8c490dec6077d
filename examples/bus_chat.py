"""A chat: messages go to everybody, a whisper to one person, and the log to later readers.

Prints:

    ada hears bob: hello
    bob hears ada whisper: how are you?
    bob hears ada: hello
    ada whispers to eve: nobody is there
    the log: bob.joined, ada.joined, ada.said, bob.said
"""

import asyncio

import redpoll
from redpoll.bus import Broadcast, Bus
from redpoll.bus.notifications import Notification
from redpoll.errors import NoRoute


class Member:
    """A person in the chat."""

    def __init__(self, bus: Bus, name: str, heard: "asyncio.Queue[str]") -> None:
        self.name = name
        self._heard = heard
        self._bus = bus
        self._notifier = bus.notifier(name, topics=["chat"])

    async def join(self) -> None:
        """Listen to messages and whispers."""
        await self._notifier.info(f"{self.name}.joined")
        await self._bus.broadcast.subscribe(self._hear, subject="room.hall").__aenter__()
        await self._bus.rpc.serve(f"whisper.{self.name}", self._whispered).start()

    async def say(self, text: str) -> None:
        """Send a message to everybody."""
        await self._notifier.info(f"{self.name}.said", text)
        await self._bus.broadcast.send(text, subject="room.hall", sender=self.name)

    async def whisper(self, name: str, text: str) -> None:
        """Send a message to one person, if connected."""
        await self._bus.rpc.call(f"whisper.{name}", None, {"from": self.name, "text": text})

    def _hear(self, broadcast: Broadcast) -> None:
        if broadcast.sender != self.name:
            self._heard.put_nowait(f"{self.name} hears {broadcast.sender}: {broadcast.body}")

    async def _whispered(self, message: dict[str, str]) -> None:
        self._heard.put_nowait(f"{self.name} hears {message['from']} whisper: {message['text']}")


async def main() -> None:
    """Let two people talk."""
    async with redpoll.connect("memory://") as bus:
        heard: asyncio.Queue[str] = asyncio.Queue()
        bob, ada = Member(bus, "bob", heard), Member(bus, "ada", heard)
        await bob.join()
        await ada.join()
        await ada.say("hello")
        await bob.say("hello")
        await ada.whisper("bob", "how are you?")
        print("\n".join(sorted([await heard.get() for _ in range(3)])))
        try:
            await ada.whisper("eve", "psst")
        except NoRoute:
            print("ada whispers to eve: nobody is there")

        log: asyncio.Queue[str] = asyncio.Queue()

        async def note(notification: Notification) -> None:
            log.put_nowait(notification.event)

        async with bus.notifications.listen(note, topics=["chat"], concurrency=1):
            print(f"the log: {', '.join([await log.get() for _ in range(4)])}")


asyncio.run(main())
