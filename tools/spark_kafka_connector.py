"""Spark's own Kafka connector (spark-sql-kafka-0-10), fetched with Maven on first use: what ours is compared with.

Its newest release on Maven Central is older than the Spark this project uses, and lacks the module for delegation
tokens, of which the last one there was is taken. That this mixture works is what the tests with it show.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tools.apache_kafka import CACHE, copy_jars, exclusive

CONNECTOR_VERSION = "4.2.0"
SCALA_VERSION = "2.13"
_JARS = (
    ("org.apache.spark", f"spark-sql-kafka-0-10_{SCALA_VERSION}", CONNECTOR_VERSION),
    ("org.apache.spark", f"spark-token-provider-kafka-0-10_{SCALA_VERSION}", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
)
_DEPENDENCY = """\
    <dependency>
      <groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version>
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>
"""
_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>millstream</groupId><artifactId>spark-kafka-connector</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{dependencies}  </dependencies>
</project>
"""


def jars() -> list[Path]:
    """The connector and what it needs beside Spark itself. ToolchainMissingError says what is missing."""
    directory = CACHE / "spark-kafka-connector" / CONNECTOR_VERSION
    with exclusive("spark-kafka-connector"):
        if not (directory / "complete").exists():
            _fetch(directory)
        return sorted((directory / "libs").glob("*.jar"))


def _fetch(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / "pom.xml").write_text(_POM.format(dependencies="".join(_DEPENDENCY.format(*each) for each in _JARS)))
    copy_jars(directory, "Spark's Kafka connector")
    (directory / "complete").touch()
