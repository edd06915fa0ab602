"""What only a process can tell of itself; a simulated node has none to ask."""

from dataclasses import dataclass
from typing import Protocol

from millstream.node.measures import Histogram


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReading:
    """None is for what this system does not tell."""

    cpu_seconds: float
    start_time_seconds: float
    resident_bytes: int | None
    virtual_bytes: int | None
    open_files: int | None
    max_files: int
    disk_total_bytes: int
    disk_free_bytes: int
    loop_lag: Histogram
    collections: tuple[Histogram, ...]
    """How long collections of garbage took, by generation."""
    syncs: Histogram


class ProcessProbe(Protocol):
    async def read(self) -> ProcessReading: ...
