"""Java programs around Kafka, fetched from Maven Central by name: Kafka Streams, Connect with MirrorMaker, and Flink.

They land beside Apache Kafka in the git-ignored `.cache/`, once. They are apart from `apache_kafka.py` because of their
size (RocksDB alone has 70 MB), and because only a few tests need them.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from tools.apache_kafka import CACHE, KAFKA_VERSION, KafkaDistribution, ToolchainMissingError, copy_jars, exclusive

FLINK_VERSION = "2.2.1"
FLINK_CONNECTOR_VERSION = "5.0.0-2.2"

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
      <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
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
    return _resolve("kafka-streams", [("org.apache.kafka", "kafka-streams", KAFKA_VERSION)])


def connect() -> KafkaDistribution:
    """The jars of Kafka Connect with MirrorMaker 2 and the connectors for files."""
    names = ("connect-mirror", "connect-runtime", "connect-file")
    return _resolve("kafka-connect", [("org.apache.kafka", name, KAFKA_VERSION) for name in names])


def flink() -> KafkaDistribution:
    """The jars of Apache Flink, to run it in one process, and of its connector for Kafka."""
    connector = ("org.apache.flink", "flink-connector-kafka", FLINK_CONNECTOR_VERSION)
    names = ("flink-streaming-java", "flink-clients", "flink-connector-base")
    return _resolve("flink", [*(("org.apache.flink", name, FLINK_VERSION) for name in names), connector])


def _resolve(name: str, artifacts: Sequence[tuple[str, str, str]]) -> KafkaDistribution:
    """The jars (group, name and version of each artifact), fetched with Maven on first use, or if the list changed."""
    if not shutil.which("java"):
        raise ToolchainMissingError("java (17 or newer) is not installed")
    version = artifacts[0][2]
    directory = CACHE / name / version
    pom = _POM.format(name=name, dependencies="".join(_DEPENDENCY.format(*each) for each in artifacts))
    with exclusive(name):
        if not (directory / "complete").exists() or (directory / "pom.xml").read_text() != pom:
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            (directory / "pom.xml").write_text(pom)
            (directory / "log4j2-tool.properties").write_text(_LOG4J)
            copy_jars(directory, f"{name} {version}")
            (directory / "complete").touch()
    return KafkaDistribution(version, directory)
