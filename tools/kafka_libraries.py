"""Kafka's libraries beside the broker, fetched from Maven Central by name: Kafka Streams, and Connect with MirrorMaker.

They land beside Apache Kafka in the git-ignored `.cache/`, once. They are apart from `apache_kafka.py` because of their
size (RocksDB alone has 70 MB), and because only a few tests need them.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from tools.apache_kafka import CACHE, KAFKA_VERSION, KafkaDistribution, ToolchainMissingError, copy_jars, exclusive

_POM = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>millstream</groupId>
  <artifactId>{name}</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{dependencies}
    <dependency>
      <groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.25.3</version>
    </dependency>
  </dependencies>
</project>
"""
_DEPENDENCY = """\
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>{name}</artifactId><version>{version}</version>
    </dependency>
"""
_LOG4J = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
"""


def streams() -> KafkaDistribution:
    """The jars of Kafka Streams."""
    return _resolve("kafka-streams", ["kafka-streams"])


def connect() -> KafkaDistribution:
    """The jars of Kafka Connect with MirrorMaker 2."""
    return _resolve("kafka-connect", ["connect-mirror", "connect-runtime"])


def _resolve(name: str, artifacts: Sequence[str]) -> KafkaDistribution:
    """The jars, fetched with Maven on first use."""
    if not shutil.which("java"):
        raise ToolchainMissingError("java (17 or newer) is not installed")
    directory = CACHE / name / KAFKA_VERSION
    with exclusive(name):
        if not (directory / "complete").exists():
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            rows = "".join(_DEPENDENCY.format(name=each, version=KAFKA_VERSION) for each in artifacts)
            (directory / "pom.xml").write_text(_POM.format(name=name, dependencies=rows))
            (directory / "log4j2-tool.properties").write_text(_LOG4J)
            copy_jars(directory, f"{name} {KAFKA_VERSION}")
            (directory / "complete").touch()
    return KafkaDistribution(KAFKA_VERSION, directory)
