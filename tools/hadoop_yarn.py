"""Hadoop's YARN (ResourceManager and NodeManager), fetched with Maven on first use: tests run pipelines on it.

The daemons are in Hadoop's mini cluster. All else that they need is in PySpark, whose Hadoop has the same version.
"""

from __future__ import annotations

from pathlib import Path

import pyspark

from tools.apache_kafka import ToolchainMissingError
from tools.maven_jars import Artifact, directory_of

SPARK_JARS = Path(pyspark.__file__).parent / "jars"


def class_path() -> list[str]:
    """For `java -cp`, after the directory of the settings. ToolchainMissingError says what is missing."""
    artifacts = [
        Artifact("org.apache.hadoop", "hadoop-client-minicluster", _hadoop_version()),
        Artifact("org.bouncycastle", "bcpkix-jdk18on", "1.82", alone=False),
    ]
    return [str(directory_of("hadoop-yarn", artifacts, "Hadoop's mini cluster") / "*"), str(SPARK_JARS / "*")]


def _hadoop_version() -> str:
    """Of the Hadoop in PySpark: daemons of another one would not find their classes in it."""
    found = sorted(SPARK_JARS.glob("hadoop-client-api-*.jar"))
    if not found:
        raise ToolchainMissingError(f"{SPARK_JARS} has no hadoop-client-api")
    return found[0].stem.removeprefix("hadoop-client-api-")
