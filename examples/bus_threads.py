"""The bus without asyncio: threads submit jobs, and workers in threads do them and call a service meanwhile.

Each handler runs in its own thread and uses the same bus. The submitter sees the progress, and collects the results as
futures.

Prints:

    rates asked for by 3 handlers
    order 1: 12.50 EUR, order 2: 25.00 EUR, order 3: 37.50 EUR
    the report went through: counted, added, written
"""

from concurrent.futures import as_completed

from redpoll.blocking import connect
from redpoll.bus import Task


class Rates:
    """A service whose methods are called in threads."""

    def __init__(self) -> None:
        self.asked = 0

    def rate(self, currency: str) -> float:
        """Return the price of one item."""
        self.asked += 1
        return {"USD": 1.25}[currency]


def report(task: Task) -> str:
    """Do something that takes a while, and report progress."""
    for step in ("counted", "added", "written"):
        task.progress(step)
    return "report.pdf"


def main() -> None:
    """Run all parts on one bus; each could be a separate program."""
    rates = Rates()
    with connect("memory://") as bus:

        def convert(task: Task) -> str:
            """Call the service from a handler."""
            rate = bus.rpc.call("rates", "rate", {"currency": "USD"}, timeout=5)
            return f"order {task.data}: {task.data * 10 * rate:.2f} EUR"

        with bus.rpc.serve("rates", rates), bus.tasks.worker(convert, "orders", concurrency=3):
            begun = [bus.tasks.run.future(number, "orders") for number in (1, 2, 3)]
            lines = sorted(future.result() for future in as_completed(begun))
        print(f"rates asked for by {rates.asked} handlers")
        print(", ".join(lines))

        steps: list[str] = []
        task = bus.tasks.submit("monthly", "reports")
        task.on_progress(steps.append)
        with bus.tasks.worker(report, "reports"):
            task.result(timeout=5)
    print(f"the report went through: {', '.join(steps)}")


if __name__ == "__main__":
    main()
