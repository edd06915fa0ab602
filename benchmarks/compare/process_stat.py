"""What a broker's process costs, read from /proc: CPU seconds, resident memory now, resident memory at its peak."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def _family(pid: int) -> list[int]:
    """The process and all its descendants: work moved into a child process is still the broker's work."""
    found = [pid]
    for each in found:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            try:
                found.extend(int(child) for child in task.read_text().split())
            except OSError:
                continue
    return found


def cpu_seconds(pid: int) -> float:
    """User plus system time of all threads, of the process and its live descendants."""
    ticks = 0
    for each in _family(pid):
        try:
            said = Path(f"/proc/{each}/stat").read_text()
        except FileNotFoundError:
            if each == pid:
                raise
            continue  # a child that has ended since
        # The command name may contain spaces and brackets, so fields are counted from its closing bracket.
        fields = said.rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_PER_SECOND


def _status_megabytes(pid: int, name: str) -> float:
    total_kb = 0
    for each in _family(pid):
        for line in Path(f"/proc/{each}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                total_kb += int(line.split()[1])
    return total_kb / 1024


def resident_megabytes(pid: int) -> float:
    return _status_megabytes(pid, "VmRSS")


def peak_resident_megabytes(pid: int) -> float:
    return _status_megabytes(pid, "VmHWM")
