"""Hadoop's YARN (ResourceManager and NodeManager), fetched with Maven on first use: tests run pipelines on it.

The daemons are in Hadoop's mini cluster. All else that they need is in PySpark, whose Hadoop has the same version.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pyspark

from tools.apache_kafka import CACHE, ToolchainMissingError, copy_jars, exclusive

SPARK_JARS = Path(pyspark.__file__).parent / "jars"
_BOUNCY_CASTLE_VERSION = "1.82"
_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>millstream</groupId><artifactId>hadoop-yarn</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.hadoop</groupId><artifactId>hadoop-client-minicluster</artifactId><version>{hadoop}</version>
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>
    <dependency>
      <groupId>org.bouncycastle</groupId><artifactId>bcpkix-jdk18on</artifactId><version>{bouncy_castle}</version>
    </dependency>
  </dependencies>
</project>
"""


def class_path() -> list[str]:
    """For `java -cp`, after the directory of the settings. ToolchainMissingError says what is missing."""
    version = _hadoop_version()
    directory = CACHE / "hadoop-yarn" / version
    with exclusive("hadoop-yarn"):
        if not (directory / "complete").exists():
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            (directory / "pom.xml").write_text(_POM.format(hadoop=version, bouncy_castle=_BOUNCY_CASTLE_VERSION))
            copy_jars(directory, f"Hadoop's mini cluster {version}")
            (directory / "complete").touch()
    return [str(directory / "libs" / "*"), str(SPARK_JARS / "*")]


def _hadoop_version() -> str:
    """Of the Hadoop in PySpark: daemons of another one would not find their classes in it."""
    found = sorted(SPARK_JARS.glob("hadoop-client-api-*.jar"))
    if not found:
        raise ToolchainMissingError(f"{SPARK_JARS} has no hadoop-client-api")
    return found[0].stem.removeprefix("hadoop-client-api-")
