"""Worked examples as a user runs them: a broker each, the session of the Spark tests for all."""

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millstream
from millstream.client import Client
from millstream.pipeline.definition import load
from millstream.pipeline.engine.run import RunOptions, run_pipeline
from millstream.testing import EmbeddedBroker
from tests.repository import REPOSITORY
from tests.system.spark.conftest import spark  # noqa: F401  # a fixture
from tests.waiting import TIMEOUT_SECONDS

EXAMPLES = REPOSITORY / "examples" / "pipelines"


@dataclass
class Example:
    """One example, with a broker of its own; `run` takes what is there and ends."""

    directory: Path
    client: Client
    session: SparkSession

    @property
    def generate(self) -> ModuleType:
        """Its data generator, as a module."""
        spec = importlib.util.spec_from_file_location(
            f"generate_{self.directory.name.replace('-', '_')}", self.directory / "generate.py"
        )
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def run(self, file: str = "pipeline.yaml") -> None:
        run_pipeline(load(self.directory / file), RunOptions(once=True, json=True), session=self.session)

    def results(self, topic: str) -> list[dict[str, Any]]:
        """The records of a topic that a read_committed reader sees, as JSON."""
        return [record.json() for record in self.client.consume(topic, "earliest", follow=False)]


@pytest.fixture
def example(
    request: pytest.FixtureRequest,
    spark: SparkSession,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Example]:
    """The example that the test names: `@pytest.mark.parametrize("example", ["orders-revenue"], indirect=True)`."""
    with EmbeddedBroker() as broker, millstream.connect(broker.bootstrap_servers, timeout=TIMEOUT_SECONDS) as client:
        monkeypatch.setenv("MILLSTREAM_BOOTSTRAP", broker.bootstrap_servers)
        monkeypatch.setenv("MILLSTREAM_STATE_HOME", str(tmp_path / "state"))
        monkeypatch.setenv("LAKE", str(tmp_path / "lake"))
        yield Example(EXAMPLES / request.param, client, spark)


@pytest.fixture(scope="session")
def pictures() -> Path | None:
    """Where pictures of results go; none are drawn unless MILLSTREAM_PICTURES names a directory."""
    chosen = os.environ.get("MILLSTREAM_PICTURES")
    return Path(chosen) if chosen else None
