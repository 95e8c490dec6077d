"""A report of many files: a group of chains, joined and mailed, and one that fails.

Prints:

    a.csv and b.csv: 7 rows
    mailed 'a.csv and b.csv: 7 rows' to ada
    nothing was mailed: FileNotFoundError: c.csv
"""

from dataclasses import dataclass

import redpoll
from redpoll import App, TaskCancelled

app = App("memory://")  # with a hub, `redpoll run app_report` works in other processes

FILES = {"a.csv": "1\n2\n3\n", "b.csv": "4\n5\n6\n7\n"}


@dataclass
class Table:
    """A file that was read."""

    name: str
    rows: list[int]


@app.task(queue="disk")
def read(name: str) -> str:
    """Read a file, in a thread."""
    if name not in FILES:
        raise FileNotFoundError(name)
    return FILES[name]


@app.task(queue="computing")
async def parse(text: str, name: str) -> Table:
    """Parse its text."""
    return Table(name, [int(line) for line in text.split()])


@app.task(queue="computing")
async def report(tables: list[Table]) -> str:
    """Say what all files hold."""
    return f"{' and '.join(each.name for each in tables)}: {sum(len(each.rows) for each in tables)} rows"


@app.task(queue="mail")
async def mail(text: str, to: str) -> str:
    """Mail a report."""
    return f"mailed {text!r} to {to}"


async def main() -> None:
    """Submit two reports, and work on them in this process."""
    async with app, app.work():
        tables = app.group(read.chain(name).then(parse, name) for name in FILES)
        print(await tables.then(report).run())
        print(await tables.then(report).then(mail, to="ada").run())
        tables = app.group(read.chain(name).then(parse, name) for name in ("a.csv", "c.csv"))
        try:
            await tables.then(report).then(mail, to="ada").run()
        except TaskCancelled as error:
            print("nothing was mailed:", error.reason.partition("failed: ")[2])


if __name__ == "__main__":
    redpoll.run(main())
