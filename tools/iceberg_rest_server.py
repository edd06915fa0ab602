"""Iceberg's own REST catalog server, fetched with Maven on first use: tests keep tables in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from millstream.testing.node_process import free_ports
from tests.waiting import until
from tools.apache_kafka import CACHE, ToolchainMissingError, copy_jars, exclusive

ICEBERG_VERSION = "1.10.0"
_MAIN = "org.apache.iceberg.rest.RESTCatalogServer"
_JARS = (
    ("org.apache.iceberg", "iceberg-open-api", ICEBERG_VERSION, "test-fixtures"),
    ("org.apache.iceberg", "iceberg-core", ICEBERG_VERSION, ""),
    ("org.apache.iceberg", "iceberg-core", ICEBERG_VERSION, "tests"),
    ("org.apache.iceberg", "iceberg-aws", ICEBERG_VERSION, ""),
    ("org.apache.iceberg", "iceberg-aws-bundle", ICEBERG_VERSION, ""),
    ("org.apache.hadoop", "hadoop-client-api", "3.4.1", ""),
    ("org.apache.hadoop", "hadoop-client-runtime", "3.4.1", ""),
    ("org.eclipse.jetty", "jetty-servlet", "11.0.26", ""),
    ("org.xerial", "sqlite-jdbc", "3.50.3.0", ""),
    ("org.slf4j", "slf4j-simple", "2.0.17", ""),
)
"""The server is in Iceberg's test fixtures, which name none of the jars that they need."""
_DEPENDENCY = """\
    <dependency>
      <groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version>{3}
    </dependency>
"""
_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>millstream</groupId><artifactId>iceberg-rest-server</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{dependencies}  </dependencies>
</project>
"""


def _dependency(group: str, name: str, version: str, classifier: str) -> str:
    return _DEPENDENCY.format(group, name, version, f"<classifier>{classifier}</classifier>" if classifier else "")


def jars() -> list[Path]:
    """The server and what it needs. ToolchainMissingError says what is missing."""
    directory = CACHE / "iceberg-rest-server" / ICEBERG_VERSION
    with exclusive("iceberg-rest-server"):
        if not (directory / "complete").exists():
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            (directory / "pom.xml").write_text(_POM.format(dependencies="".join(_dependency(*each) for each in _JARS)))
            copy_jars(directory, "Iceberg's REST catalog")
            (directory / "complete").touch()
        return sorted((directory / "libs").glob("*.jar"))


@contextmanager
def running(warehouse: str, s3: Mapping[str, str], directory: Path) -> Iterator[str]:
    """The address of a server with an empty catalog, whose files are in an S3-compatible store."""
    if shutil.which("java") is None:
        raise ToolchainMissingError("java is not installed")
    class_path = os.pathsep.join(map(str, jars()))
    port = free_ports(1)[0]
    settings = {
        "CATALOG_REST_PORT": str(port),
        "CATALOG_WAREHOUSE": warehouse,
        "CATALOG_IO__IMPL": "org.apache.iceberg.aws.s3.S3FileIO",
        "CATALOG_S3_ENDPOINT": s3["s3.endpoint"],
        "CATALOG_S3_PATH__STYLE__ACCESS": "true",
        "CATALOG_S3_ACCESS__KEY__ID": s3["s3.access-key"],
        "CATALOG_S3_SECRET__ACCESS__KEY": s3["s3.secret-key"],
        "CATALOG_CATALOG__IMPL": "org.apache.iceberg.jdbc.JdbcCatalog",
        "CATALOG_URI": f"jdbc:sqlite:file:{directory}/catalog.db",
        "CATALOG_JDBC_USER": "user",
        "CATALOG_JDBC_PASSWORD": "password",
        "AWS_REGION": s3["s3.region"],
    }
    log = directory / "rest-server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m", "-cp", class_path, _MAIN],
            env={**os.environ, **settings},
            stdout=output,
            stderr=output,
        )
    uri = f"http://127.0.0.1:{port}"

    def responds() -> bool:
        if server.poll() is not None:
            raise ToolchainMissingError(f"Iceberg's REST server has ended: {log.read_text()[-1000:]}")
        try:
            with urllib.request.urlopen(f"{uri}/v1/config", timeout=5) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    try:
        until(responds, "Iceberg's REST server responds")
        yield uri
    finally:
        server.terminate()
        server.wait()
