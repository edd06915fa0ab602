"""Pipelines as text for tests, and what `inspect` says of them."""

import re
from pathlib import Path
from textwrap import dedent, indent

from millstream.pipeline.definition import Inspected, inspect
from tests.repository import REPOSITORY

DOCS = REPOSITORY / "docs" / "pipelines.md"
SOURCE = """
orders:
  topic: orders
  format: json
  schema: order_id STRING, shop STRING, amount DOUBLE, at TIMESTAMP
  watermark: {column: at, delay: 2 minutes}
"""
PAYMENTS = """
payments:
  topic: payments
  format: json
  schema: order_id STRING, paid DOUBLE, paid_at TIMESTAMP
  watermark: {column: paid_at, delay: 5m}
"""
SINK = """
out:
  from: orders
  topic: out
"""


def pipeline_text(sources: str = SOURCE, steps: str = "", sinks: str = SINK, top: str = "name: shop") -> str:
    parts = [dedent(top).strip()]
    for key, text in (("sources", sources), ("steps", steps), ("sinks", sinks)):
        if text.strip():
            parts.append(f"{key}:\n" + indent(dedent(text).strip("\n"), "  "))
    return "\n".join(parts) + "\n"


def look_at(directory: Path, text: str, **environment: str) -> Inspected:
    file = directory / "pipeline.yaml"
    file.write_text(text)
    return inspect(file, environment)


def documented(directory: Path) -> Inspected:
    """The whole file of docs/pipelines.md, with the modules that it names beside it."""
    text = re.search(r"```yaml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert text is not None
    (directory / "transforms.py").write_text("def add_score(frame, threshold):\n    return frame\n")
    (directory / "alerts.py").write_text(
        "class StatefulProcessor:\n    pass\n\n\nclass SpendingLimit(StatefulProcessor):\n"
        "    def __init__(self, limit):\n        pass\n"
    )
    return look_at(directory, text[1], KAFKA_PASSWORD="secret", BOOTSTRAP="broker:9092")


def messages(found: Inspected) -> list[str]:
    """Problems as `line:column severity message`, in the order of the file."""
    return [
        f"{problem.position.line}:{problem.position.column} {problem.severity} {problem.message}"
        for problem in found.problems
    ]
