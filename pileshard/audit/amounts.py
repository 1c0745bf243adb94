"""Numbers as people read them: rounded, with a unit."""

from __future__ import annotations

_POWERS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k"))
_SIZES = ((10**15, "PB"), (10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def _three(value: float) -> str:
    """About three digits."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def large(value: float) -> str:
    """A count, such as 330B or 12.5k; below 1,000 as it is."""
    for power, letter in _POWERS:
        if value >= power * 0.9995:
            return f"{_three(value / power)}{letter}"
    return f"{value:,.0f}"


def size(value: float) -> str:
    """Bytes, such as 1.07 GB; powers of ten, as disks and networks count."""
    for power, name in _SIZES:
        if value >= power * 0.9995:
            return f"{_three(value / power)} {name}"
    return f"{value:,.0f} B"


def percent(share: float | None) -> str:
    """A share; what is not nothing is never shown as 0%."""
    if share is None:
        return "-"
    if share in (0, 1):
        return f"{share:.0%}"
    hundredths = share * 100
    if 0 < hundredths < 0.01:
        return "<0.01%"
    if 99.99 < hundredths < 100:
        return ">99.99%"
    return f"{hundredths:.2f}%" if hundredths < 10 else f"{hundredths:.1f}%"


def several(count: int, thing: str) -> str:
    """So many of a thing: 1 shard, 2 shards."""
    return f"{count:,} {thing}{'s' if count != 1 else ''}"
