"""Links and mirror topics, read from the metadata."""

from dataclasses import replace
from random import Random
from uuid import UUID

from millstream.formats.model.access_control import AclOperation, AclPatternType, AclPermission, AclResourceType
from millstream.formats.model.identifiers import TopicName
from millstream.node.metadata.image import ALL_BROKERS, ConfigResource, MetadataImage, ResourceType
from millstream.node.metadata.records import AccessControlEntryRecord
from millstream.node.mirror.core.links import (
    AclChanges,
    MirrorState,
    MirrorTopic,
    acl_changes,
    links,
    mirror_topic,
    mirror_topics,
    new_mirror_settings,
)
from millstream.node.security.core.changes import AclBinding, create_acls

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


_P = "millstream.mirror.link.west."
LINK = links(
    MetadataImage(configs={ALL_BROKERS: {f"{_P}bootstrap.servers": "a:1", f"{_P}topics": ".*", f"{_P}prefix": "w."}})
)["west"]


def mirror(name: str) -> MirrorTopic:
    state = MirrorState.MIRRORING
    return MirrorTopic(name=TopicName(f"w.{name}"), link="west", state=state, source_name=name, source_id=UUID(int=1))


def acl(name: str, kind: int = AclResourceType.TOPIC, pattern: int = AclPatternType.LITERAL) -> AclBinding:
    return AclBinding(kind, name, pattern, "User:a", "*", AclOperation.READ, AclPermission.ALLOW)


def made(*bindings: AclBinding, link: str | None = None) -> list[AccessControlEntryRecord]:
    records = create_acls(MetadataImage(), bindings, Random(1), link).records
    return [record for record in records if isinstance(record, AccessControlEntryRecord)]


def test_those_of_mirrored_topics_and_groups_are_added_under_the_names_of_this_cluster() -> None:
    prefixed = acl("ord", pattern=AclPatternType.PREFIXED)
    other = acl("oth", pattern=AclPatternType.PREFIXED)
    group, cluster = acl("billing", AclResourceType.GROUP), acl("kafka-cluster", AclResourceType.CLUSTER)
    source = [acl("orders"), acl("payments"), prefixed, other, group, cluster]
    changes = acl_changes(LINK, [mirror("orders")], source, made(group))
    assert changes == AclChanges((acl("w.orders"), replace(prefixed, resource_name="w.ord")), ())


def test_only_those_that_the_link_made_are_removed() -> None:
    group = acl("billing", AclResourceType.GROUP)
    own = made(acl("w.orders"), acl("w", pattern=AclPatternType.PREFIXED), group, link="west")
    changes = acl_changes(LINK, [mirror("orders")], [], own)
    assert set(changes.removals) == {acl("w.orders"), acl("w", pattern=AclPatternType.PREFIXED), group}
    assert acl_changes(LINK, [mirror("orders")], [], made(acl("w.orders"), group)) == AclChanges()
    assert acl_changes(LINK, [mirror("orders")], [], made(acl("w.orders"), group, link="east")) == AclChanges()
    assert acl_changes(LINK, [mirror("orders")], [acl("orders"), group], own[:1] + own[2:]) == AclChanges()


def test_those_of_promoted_topics_stay() -> None:
    own = made(acl("w.orders"), acl("w.payments"), link="west")
    assert acl_changes(LINK, [mirror("payments")], [], own) == AclChanges((), (acl("w.payments"),))
    assert acl_changes(LINK, [], [], own) == AclChanges()
