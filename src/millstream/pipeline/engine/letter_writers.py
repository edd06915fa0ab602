"""Which query sends the dead letters of a source: exactly one, however many sinks read it.

Sources that decode by themselves send bad records while they are read. Each sink reads its sources on its own, so all
but one of them leave the bad records out.
"""

import re
from collections.abc import Mapping, Sequence

from millstream.pipeline.engine.decoding import decoded_by_source, key_decoded_by_source
from millstream.pipeline.model import BadRecords, ConsoleSink, Latest, Pipeline, Route, Sink, Sql, Step, TopicSource


def letter_writers(pipeline: Pipeline, readers: Sequence[Sink | Route]) -> list[frozenset[str]]:
    """For each reader the sources whose dead letters it sends.

    Of the readers, in their order, the first that reads the source just once, since a source that is read on two ways
    in a query (joined with itself, say) sends twice. Consoles come and go, so they are taken only if there is no other.
    """
    steps: dict[str, Step] = {name: step for step in pipeline.steps for name in step.gives}
    found: list[set[str]] = [set() for _ in readers]
    for source in pipeline.sources:
        if not isinstance(source, TopicSource) or not _sends_letters(source):
            continue
        ranks = []
        for index, reader in enumerate(readers):
            if ways := _ways_from(reader, source.name, steps):
                ranks.append((isinstance(reader, ConsoleSink), ways > 1, index))
        if ranks:
            found[min(ranks)[-1]].add(source.name)
    return [frozenset(sources) for sources in found]


def _sends_letters(source: TopicSource) -> bool:
    decodes = decoded_by_source(source) or key_decoded_by_source(source)
    return decodes and source.bad_records is BadRecords.DEAD_LETTERS


def _ways_from(reader: Sink | Route, source: str, steps: Mapping[str, Step]) -> int:
    """On how many ways a query comes to the source's stream; what `latest` reads is no stream."""
    if isinstance(reader, Route):
        return _ways(reader.reads[0], source, steps)
    return _ways(reader.reads, source, steps)


def _ways(name: str, source: str, steps: Mapping[str, Step]) -> int:
    if name == source:
        return 1
    step = steps.get(name)
    if step is None or isinstance(step, Latest):
        return 0
    return sum(_mentions(step, each) * _ways(each, source, steps) for each in step.reads)


def _mentions(step: Step, name: str) -> int:
    """How often a step reads one name: SQL may do so several times."""
    if not isinstance(step, Sql):
        return 1
    tables = re.findall(rf"(?:\b(?:from|join)|,)\s+[`]?{re.escape(name)}\b", step.query, re.IGNORECASE)
    return max(1, len(tables))
