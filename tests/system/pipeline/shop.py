"""A broker with a few topics, and pipelines over them that run in one Spark session."""

import json
from collections.abc import Iterable
from pathlib import Path
from textwrap import dedent
from typing import Any

from pyspark.sql import SparkSession

from millstream.client import Message, Record, connect
from millstream.pipeline.definition import load
from millstream.pipeline.engine.run import RunOptions, run_pipeline
from millstream.pipeline.engine.supervision import RunResult
from millstream.pipeline.model import Pipeline
from millstream.pipeline.state import QueryProgress
from millstream.testing import EmbeddedBroker


class Shop:
    """A broker with a few topics, and pipelines over them."""

    def __init__(self, broker: EmbeddedBroker, directory: Path) -> None:
        self.bootstrap = broker.bootstrap_servers
        self.directory = directory

    def fill(self, topic: str, rows: Iterable[dict[str, Any] | bytes | None], key: str | None = None) -> None:
        with connect(self.bootstrap) as client:
            client.create_topic(topic, partitions=2, exist_ok=True)
            client.publish_many(
                topic,
                [
                    Message(
                        value=json.dumps(row).encode() if isinstance(row, dict) else row,
                        key=None if key is None or not isinstance(row, dict) else str(row[key]),
                    )
                    for row in rows
                ],
            )

    def records(self, topic: str) -> list[Record[Any]]:
        with connect(self.bootstrap) as client:
            return list(client.consume(topic, follow=False))

    def rows(self, topic: str) -> list[dict[str, Any]]:
        return [json.loads(record.raw or b"null") for record in self.records(topic)]

    def pipeline(self, text: str, name: str = "pipeline") -> Pipeline:
        file = self.directory / f"{name}.yaml"
        file.write_text(dedent(text).replace("BOOTSTRAP", self.bootstrap))
        return load(file)


def run_once(pipeline: Pipeline, session: SparkSession) -> dict[str, QueryProgress]:
    """All that is there; gives the last progress of each sink."""
    seen: dict[str, QueryProgress] = {}
    options = RunOptions(once=True, archive_classes=False)

    def note(progress: QueryProgress) -> None:
        seen.update({each.sink: each for each in progress.by_output})

    assert run_pipeline(pipeline, options, session=session, listener=note) is RunResult.FINISHED
    return seen


def at(second: int) -> str:
    return f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z"
