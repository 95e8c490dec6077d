"""A queue between processes: one put for all, a future that is done when all have it, and a client that is full.

Prints:

    1000 settings reached 3 clients
    the last one is {'step': 999} everywhere: True
    2 clients have the news, one is full: QueueFull
"""

from redpoll import nq
from redpoll.errors import QueueFull

CLIENTS = 3


def options(port: int, queue_size: int = 2**30) -> nq.CommunicatorOptions:
    """Options of one end; they contain its id, so each end has its own."""
    connection = nq.ConnectionOptions(queue_size=queue_size)
    return nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=port), connection=connection)


def main() -> None:
    """Run a server and three clients, which could be separate processes; one has room for a thousand messages."""
    server = nq.new(purpose="server", options=options(0))
    sizes = (2**30, 2**30, 1000)
    clients = [nq.new(options=options(server.netloc.port, size)) for size in sizes]
    for client in clients:
        client.ready(timeout=10)

    puts = [server.put({"step": step}) for step in range(1000)]  # each is serialized once
    for put in puts:
        put.result(timeout=10)
    print(f"{len(puts)} settings reached {len(clients)} clients")
    last = [[client.get().data for _ in puts][-1] for client in clients[:2]]
    print(f"the last one is {last[0]} everywhere:", last[0] == last[1])

    news = server.put("news")
    try:
        news.result(timeout=10)
    except QueueFull as error:  # the first error of any peer
        have = sum(client.get(timeout=10).data == "news" for client in clients[:2])
        print(f"{have} clients have the news, one is full: {type(error).__name__}")

    for client in clients:
        client.close()
    server.close()


if __name__ == "__main__":
    main()
