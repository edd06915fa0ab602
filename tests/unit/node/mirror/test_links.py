"""Links and mirror topics, read from the metadata."""

from uuid import UUID

from millstream.node.metadata.image import ALL_BROKERS, ConfigResource, MetadataImage, ResourceType
from millstream.node.mirror.core.links import MirrorState, links, mirror_topic, mirror_topics, new_mirror_settings

P = "millstream.mirror.link."


def image(**settings: str) -> MetadataImage:
    values = {P + name.replace("__", "."): value for name, value in settings.items()}
    return MetadataImage(configs={ALL_BROKERS: values})


def test_a_link_exists_with_its_servers() -> None:
    found = links(
        image(
            west__bootstrap__servers="a:1, b:2",
            west__topics="orders.*",
            west__prefix="west.",
            west__sasl__jaas__config="secret",
            east__topics=".*",
        )
    )
    assert list(found) == ["west"]
    link = found["west"]
    assert link.bootstrap_servers == ("a:1", "b:2")
    assert link.wants("orders") and link.wants("orders-2") and not link.wants("other")
    assert link.wants_group("any") and not link.is_paused
    assert "secret" not in repr(link.topics)
    assert set(link.connection) == {"bootstrap.servers", "sasl.jaas.config"}


def test_internal_topics_and_impossible_names_are_left_out() -> None:
    link = links(image(west__bootstrap__servers="a:1", west__topics=".*", west__prefix="p" * 245))["west"]
    assert not link.wants("__consumer_offsets") and not link.wants("__anything")
    assert link.wants("abcd") and not link.wants("abcde")


def test_a_link_that_cannot_be_used_says_why() -> None:
    found = links(image(west__bootstrap__servers="a:1", west__topics="("))["west"]
    assert found.problem is not None and "pattern" in found.problem
    assert not found.wants("x")


def test_mirror_topics_are_read_from_their_settings() -> None:
    settings = new_mirror_settings("west", "orders", UUID(int=7))
    mirror = mirror_topic("west.orders", settings)
    assert mirror is not None
    assert (mirror.link, mirror.state, mirror.source_name) == ("west", MirrorState.MIRRORING, "orders")
    assert mirror.source_id == UUID(int=7) and mirror.is_pulled
    assert mirror_topic("plain", {}) is None
    assert mirror_topic("odd", settings | {"millstream.mirror.source.topic.id": "x"}) is None
    configs = {ConfigResource(ResourceType.TOPIC, "west.orders"): settings}
    assert [each.name for each in mirror_topics(MetadataImage(configs=configs))] == ["west.orders"]
