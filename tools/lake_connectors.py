"""Connectors of lake formats for Spark, fetched with Maven on first use: tables with `MERGE INTO`.

The newest release of each is for an older Spark than the one this project uses. That it works is what the tests show.
"""

from __future__ import annotations

from pathlib import Path

from tools.maven_jars import Artifact, directory_of

_ICEBERG = [Artifact("org.apache.iceberg", "iceberg-spark-runtime-4.1_2.13", "1.12.0")]


def iceberg() -> list[Path]:
    """ToolchainMissingError says what is missing."""
    return sorted(directory_of("iceberg-spark-runtime", _ICEBERG, "Iceberg's connector for Spark").glob("*.jar"))
