"""Times in the notation of cron: minute, hour, day of the month, month, day of the week."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from redpoll.errors import ConfigError

__all__ = ["next_time"]

#: The least and the greatest value of each field; 7 is Sunday, as 0 is.
_FIELDS: Final = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
#: Days after which there is no such time: the 29th of February is there within 8 years.
_DAYS: Final = 366 * 8 + 2


def next_time(cron: str, after: float) -> float:
    """Return the first time after another one, in seconds since 1970; fields are in UTC.

    Args:
        cron: Five fields of ``*``, numbers, ranges ``a-b``, steps ``*/n``, ``a-b/n`` and ``a/n``, which is from a to the
            greatest value, and lists of these. Where both days are limited, either is enough.
        after: The other time.

    Raises:
        ConfigError: It cannot be read, or there is no such time.
    """
    fields = str(cron).split()
    if len(fields) != len(_FIELDS):
        raise ConfigError("cron", cron, "must have five fields: minute, hour, day, month, day of the week")
    minutes, hours, days, months, weekdays = (
        _values(cron, text, *limits) for text, limits in zip(fields, _FIELDS, strict=True)
    )
    either = fields[2] != "*" and fields[4] != "*"
    start = datetime.fromtimestamp(after, UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
    for number in range(_DAYS):
        day = start if not number else (start + timedelta(days=number)).replace(hour=0, minute=0)
        fits = day.day in days, day.isoweekday() % 7 in weekdays or (day.isoweekday() == 7 and 7 in weekdays)
        if day.month not in months or not (any(fits) if either else all(fits)):
            continue
        for hour in sorted(each for each in hours if each >= day.hour):
            for minute in sorted(minutes):
                if hour > day.hour or minute >= day.minute:
                    return day.replace(hour=hour, minute=minute).timestamp()
    raise ConfigError("cron", cron, "must have a day and a month that exist")


def _values(cron: str, text: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, slash, step = part.partition("/")
        first, dash, last = span.partition("-")
        try:
            begin = low if span == "*" else int(first)
            end = int(last) if dash else high if slash or span == "*" else begin
            width = int(step) if slash else 1
        except ValueError:
            begin, end, width = 1, 0, 1
        if not low <= begin <= end <= high or width < 1:
            raise ConfigError("cron", cron, f"{part!r} must be within {low} to {high}, as *, a, a-b, */n, a/n or a-b/n")
        found.update(range(begin, end + 1, width))
    return found
