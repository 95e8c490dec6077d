"""Prices for everybody: one exchange distributes, and each queue that is bound to it gets every message.

The exchange does not wait for those who are slow: what there is no room for is dropped, for that one alone, and stands as a gap in
its stream, with the count. (`AtLimit.WAIT`, the default, would wait for the slowest.)

Prints:

    chart: 200 prices, the last is 199
    board: 10 prices, and 190 that were too many
"""

import asyncio

from redpoll import GLOBAL, LOCAL, Wiring
from redpoll.wiring import AtLimit, Directory, Gap, Limits
