"""Kafka Streams, fetched from Maven Central by name: the library for which the test applications are compiled.

It lands beside Apache Kafka in the git-ignored `.cache/`, once. It is apart from `apache_kafka.py` because of its size:
RocksDB alone has 70 MB, and only the tests of streams groups need it.
"""

from __future__ import annotations

import shutil

from tools.apache_kafka import CACHE, KAFKA_VERSION, KafkaDistribution, ToolchainMissingError, copy_jars, exclusive

_POM = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>millstream</groupId>
  <artifactId>kafka-streams</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka-streams</artifactId><version>{kafka}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.25.3</version>
    </dependency>
  </dependencies>
</project>
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


def resolve() -> KafkaDistribution:
    """The jars, fetched with Maven on first use."""
    if not shutil.which("java"):
        raise ToolchainMissingError("java (17 or newer) is not installed")
    directory = CACHE / "kafka-streams" / KAFKA_VERSION
    with exclusive("kafka-streams"):
        if not (directory / "complete").exists():
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            (directory / "pom.xml").write_text(_POM.format(kafka=KAFKA_VERSION))
            (directory / "log4j2-tool.properties").write_text(_LOG4J)
            copy_jars(directory, f"Kafka Streams {KAFKA_VERSION}")
            (directory / "complete").touch()
    return KafkaDistribution(KAFKA_VERSION, directory)
