"""Finds what Apache Kafka would refuse in the metadata of a data directory (ADR 47).

Kafka reads every record that Millstream writes. What it cannot do is use features that only Millstream has: those are
found here, by the settings that turn them on. Pure; `millstream migrate check --data-dir` prints the result.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from millstream.config.catalog import TOPIC_SETTINGS
from millstream.config.group_config import GROUP_SETTINGS
from millstream.node.metadata.features import METADATA_VERSION
from millstream.node.metadata.image import MetadataImage, ResourceType

_RELEASES = {"4.0": 25, "4.1": 27, "4.2": 29, "4.3": 30}
"""The highest level of `metadata.version` of each release of Kafka."""
_KAFKA_DIRECTORY = re.compile(r".+-\d+|.+-\d+\..+-(delete|future|stray)|remote-log-index-cache")
_MARK_OF_OWN_SETTINGS = "Millstream only"
_DEAD_LETTERS = "errors.deadletterqueue."
"""Settings of KIP-1191, which Kafka 4.3 does not have yet."""
_SETTINGS = {ResourceType.TOPIC: TOPIC_SETTINGS, ResourceType.GROUP: GROUP_SETTINGS}


class Obstacle(NamedTuple):
    blocks: bool
    """Whether Kafka does not start, or loses records."""
    subject: str
    text: str


def obstacles_for_kafka(image: MetadataImage, directories: Iterable[str], *, has_voters: bool) -> Iterator[Obstacle]:
    """What has to be done before Kafka is started, and what is different there. `directories` are the names of the
    directories in the data directory; `has_voters` whether the voters of the quorum are in the metadata log."""
    yield from _directories(directories)
    for name in sorted(image.topics):
        settings = image.topic_config(name)
        if settings.get("remote.storage.enable") == "true":
            text = (
                "remote.storage.enable=true: Kafka cannot read the segments in the object store; copy the topic first"
            )
            yield Obstacle(True, f"topic {name}", text)
        state = settings.get("millstream.mirror.state")
        if state is not None and state != "promoted":
            text = f"it is a mirror topic ({state}): Kafka would accept writes to it; promote it or fail it over first"
            yield Obstacle(True, f"topic {name}", text)
    yield from _own_settings(image)
    yield from _versions(image, has_voters)


def _directories(names: Iterable[str]) -> Iterator[Obstacle]:
    for name in sorted(names):
        if name == "cores":
            text = "it has several nodes (serve --cores): start once with --cores 1, which moves everything into one"
            yield Obstacle(True, f"directory {name}", text)
        elif not _KAFKA_DIRECTORY.fullmatch(name):
            text = "Kafka does not start with a directory that is not of a partition: move it away"
            yield Obstacle(True, f"directory {name}", text)


def _own_settings(image: MetadataImage) -> Iterator[Obstacle]:
    for resource, values in sorted(image.configs.items()):
        known = _SETTINGS.get(ResourceType(resource.type)) if resource.type in list(ResourceType) else None
        if known is None:
            continue
        own = [
            each
            for each in sorted(values)
            if each in known and (_MARK_OF_OWN_SETTINGS in known[each].explanation or each.startswith(_DEAD_LETTERS))
        ]
        if own:
            kind = ResourceType(resource.type).name.lower()
            text = f"Kafka does not know {', '.join(own)}, and refuses changes of its settings until they are removed"
            yield Obstacle(False, f"{kind} {resource.name}", f"{text} (kafka-configs --alter --delete-config)")


def _versions(image: MetadataImage, has_voters: bool) -> Iterator[Obstacle]:
    level = image.features.get(METADATA_VERSION.name, 0)
    release = next((name for name, highest in _RELEASES.items() if level <= highest), "a later one")
    yield Obstacle(False, "version", f"metadata.version is {level}: Kafka {release} or later is needed")
    if has_voters:
        setting = "controller.quorum.bootstrap.servers=HOST:PORT: the voters are in the metadata log"
    else:
        setting = "controller.quorum.voters=ID@HOST:PORT: the voters are not in the metadata log"
    yield Obstacle(False, "settings", f"Kafka needs the same node.id, and {setting}")
