"""What the numbers were measured on: cores, kernel, versions, date. Without it a benchmark is hearsay."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import confluent_kafka

from tools import apache_kafka


def describe() -> dict[str, str]:
    memory_kb = int(re.findall(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())[0])
    models = re.findall(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": f"{os.cpu_count()} × {models[0] if models else platform.machine()}",
        "memory": f"{memory_kb / 1024 / 1024:.0f} GB",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "java": _java_version(),
        "kafka": apache_kafka.KAFKA_VERSION,
        "librdkafka": confluent_kafka.libversion()[0],
    }


def _java_version() -> str:
    try:
        said = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=20).stderr
    except OSError:
        return "none"
    found = re.search(r'version "([^"]+)"', said)
    return found[1] if found else "unknown"


def remark(facts: dict[str, str], load_average: float) -> str:
    return (
        f"{facts['date']}: {facts['cpu']}, {facts['memory']}, Linux {facts['kernel']}, Python {facts['python']}, "
        f"Java {facts['java']}, Apache Kafka {facts['kafka']}, librdkafka {facts['librdkafka']}; "
        f"load average at the start {load_average:.1f}"
    )
