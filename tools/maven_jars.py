"""Jars from Maven Central by name, fetched with Maven on first use into the git-ignored `.cache/`."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tools.apache_kafka import CACHE, copy_jars, exclusive


class Artifact(NamedTuple):
    group: str
    name: str
    version: str
    alone: bool = True
    """Without the jars that it depends on."""


_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
_DEPENDENCY = """\
    <dependency>
      <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}
    </dependency>
"""
_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>millstream</groupId><artifactId>{name}</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{dependencies}  </dependencies>
</project>
"""


def directory_of(name: str, artifacts: Sequence[Artifact], what: str) -> Path:
    """The directory with the jars; `what` names them in messages. ToolchainMissingError says what is missing."""
    directory = CACHE / name / artifacts[0].version
    rows = [_DEPENDENCY.format(*each[:3], _ALONE if each.alone else "") for each in artifacts]
    pom = _POM.format(name=name, dependencies="".join(rows))
    with exclusive(name):
        if not (directory / "complete").exists() or (directory / "pom.xml").read_text() != pom:
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            (directory / "pom.xml").write_text(pom)
            copy_jars(directory, f"{what} {artifacts[0].version}")
            (directory / "complete").touch()
    return directory / "libs"
