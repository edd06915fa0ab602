"""What is derived from names: queries, consumer groups, checkpoints; stable while other parts of the file change."""

import os
from pathlib import Path

from millstream.pipeline.model import Pipeline, Route, Sink, TopicSource

STATE_HOME_VARIABLE = "MILLSTREAM_STATE_HOME"


def query_name(pipeline: str, sink: str) -> str:
    """Of the streaming query that feeds a sink."""
    return f"{pipeline}.{sink}"


def dead_letter_query_name(pipeline: str, step: str) -> str:
    """Of the query that carries what no branch of a route took."""
    return f"{pipeline}.{step}.dead-letters"


def consumer_group(pipeline: str, sink: Sink | Route, source: TopicSource) -> str:
    """The group to which the query of this sink (or of a route's dead letters) commits how far it has read `source`."""
    if isinstance(sink, Route):
        return dead_letter_query_name(pipeline, sink.name)
    return source.group or query_name(pipeline, sink.name)


def checkpoint_location(pipeline: Pipeline, query: str, override: str | None = None) -> str:
    """The checkpoint of a query, by its name; below `override` (--checkpoint-dir) or where the file says."""
    root = override or pipeline.checkpoint
    leaf = query.removeprefix(f"{pipeline.name}.")
    if root is None:
        return str(state_directory(pipeline.name) / "checkpoints" / leaf)
    return f"{root.rstrip('/')}/{pipeline.name}/{leaf}"


def state_home() -> Path:
    """Where this machine keeps what it knows of its pipelines."""
    chosen = os.environ.get(STATE_HOME_VARIABLE)
    if chosen:
        return Path(chosen).absolute()
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "millstream" / "pipelines"


def state_directory(pipeline: str) -> Path:
    return state_home() / pipeline
