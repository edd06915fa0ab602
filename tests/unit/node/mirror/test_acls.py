"""Which ACLs a link adds and removes."""

from dataclasses import replace
from random import Random
from uuid import UUID

from millstream.formats.model.access_control import AclOperation, AclPatternType, AclPermission, AclResourceType
from millstream.formats.model.identifiers import TopicName
from millstream.node.metadata.image import ALL_BROKERS, MetadataImage
from millstream.node.metadata.records import AccessControlEntryRecord
from millstream.node.mirror.core.acls import AclChanges, acl_changes
from millstream.node.mirror.core.links import MirrorState, MirrorTopic, links
from millstream.node.security.core.changes import AclBinding, create_acls

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
