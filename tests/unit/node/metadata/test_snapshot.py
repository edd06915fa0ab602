"""An image written down as records gives the same image again."""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.formats.model.identifiers import BrokerId, TopicId, TopicName
from millstream.node.metadata.image import (
    BrokerRegistration,
    ConfigResource,
    MetadataImage,
    PartitionState,
    TopicImage,
    apply,
    cluster_id_record,
)
from millstream.node.metadata.records import (
    AccessControlEntryRecord,
    CorruptMetadataError,
    DelegationTokenRecord,
    Endpoint,
    QuotaEntity,
    RegisterControllerRecord,
    SupportedFeature,
    UserScramCredentialRecord,
    decode_record,
    encode_record,
)
from millstream.node.metadata.snapshot import difference, snapshot_records
from millstream.node.metadata.topic_names import folded
from millstream.node.metadata.topics import NewTopic, TopicReference, delete_topics
from tests.unit.node.metadata.cluster import Cluster

NUMBERS = st.lists(st.integers(0, 5), max_size=3, unique=True).map(tuple)
UUIDS = st.integers(1, (1 << 128) - 1).map(lambda number: UUID(int=number))
PARTITIONS = st.builds(
    PartitionState,
    replicas=NUMBERS,
    isr=NUMBERS,
    leader=st.integers(-1, 5),
    leader_epoch=st.integers(0, 9),
    partition_epoch=st.integers(0, 9),
    removing_replicas=NUMBERS,
    adding_replicas=NUMBERS,
    directories=st.lists(UUIDS, max_size=2).map(tuple),
    leader_recovery_state=st.integers(0, 1),
    eligible_leader_replicas=NUMBERS,
    last_known_elr=NUMBERS,
)
BROKERS = st.builds(
    BrokerRegistration,
    id=st.integers(0, 5).map(BrokerId),
    epoch=st.integers(0, 1 << 40),
    incarnation_id=UUIDS,
    end_points=st.just((Endpoint(name="A", host="h", port=1, security_protocol=1),)),
    features=st.just((SupportedFeature(name="f", min_supported_version=0, max_supported_version=1),)),
    rack=st.sampled_from([None, "r"]),
    fenced=st.booleans(),
    in_controlled_shutdown=st.booleans(),
    log_dirs=st.lists(UUIDS, max_size=2).map(tuple),
)
CONTROLLERS = st.builds(
    RegisterControllerRecord,
    controller_id=st.integers(0, 5),
    incarnation_id=UUIDS,
    end_points=st.just((Endpoint(name="A", host="h", port=1, security_protocol=1),)),
)
RESOURCES = st.sampled_from([ConfigResource(2, "a"), ConfigResource(4, ""), ConfigResource(4, "1")])
VALUES = st.dictionaries(st.sampled_from(["x", "y"]), st.sampled_from(["", "1"]), min_size=1)

ACLS = st.builds(
    AccessControlEntryRecord,
    id=UUIDS,
    resource_type=st.integers(2, 7),
    resource_name=st.sampled_from(["a", "*"]),
    pattern_type=st.integers(3, 4),
    principal=st.sampled_from(["User:a", "User:*"]),
    host=st.just("*"),
    operation=st.integers(2, 15),
    permission_type=st.integers(2, 3),
)
CREDENTIALS = st.builds(
    UserScramCredentialRecord,
    name=st.sampled_from(["a", "b"]),
    mechanism=st.integers(1, 2),
    salt=st.binary(max_size=3),
    stored_key=st.binary(max_size=3),
    server_key=st.binary(max_size=3),
    iterations=st.integers(4096, 16384),
)
TOKENS = st.builds(
    DelegationTokenRecord,
    owner=st.just("User:a"),
    requester=st.just("User:b"),
    renewers=st.sampled_from([(), ("User:c",)]),
    issue_timestamp=st.integers(0, 9),
    max_timestamp=st.integers(0, 9),
    expiration_timestamp=st.integers(0, 9),
    token_id=st.sampled_from(["t", "u"]),
)
ENTITIES = st.frozensets(
    st.builds(
        QuotaEntity, entity_type=st.sampled_from(["user", "client-id"]), entity_name=st.sampled_from([None, "a"])
    ),
    min_size=1,
    max_size=1,
)
QUOTAS = st.dictionaries(st.sampled_from(["producer_byte_rate", "request_percentage"]), st.floats(0, 9), min_size=1)


@st.composite
def images(draw: st.DrawFn) -> MetadataImage:
    names = draw(st.lists(st.sampled_from(["a", "b.c", "d"]), unique=True))
    topics = {
        TopicName(name): TopicImage(
            name=TopicName(name),
            id=TopicId(UUID(int=number + 1)),
            partitions=tuple(draw(st.lists(PARTITIONS, min_size=1, max_size=3))),
        )
        for number, name in enumerate(names)
    }
    return MetadataImage(
        cluster_id=draw(st.sampled_from(["", "c"])),
        offset=7,
        epoch=3,
        brokers={broker.id: broker for broker in draw(st.lists(BROKERS, max_size=3))},
        controllers={each.controller_id: each for each in draw(st.lists(CONTROLLERS, max_size=2))},
        topics=topics,
        topics_by_id={topic.id: topic for topic in topics.values()},
        names_by_folded={folded(name): name for name in topics},
        configs=draw(st.dictionaries(RESOURCES, VALUES)),
        features=draw(st.dictionaries(st.sampled_from(["metadata.version", "a", "z"]), st.integers(1, 9))),
        features_off=draw(st.sampled_from([frozenset(), frozenset({"m", "n"})])),
        next_producer_id=draw(st.sampled_from([0, 1000])),
        acls={acl.id: acl for acl in draw(st.lists(ACLS, max_size=2))},
        scram_credentials={(each.name, each.mechanism): each for each in draw(st.lists(CREDENTIALS, max_size=2))},
        delegation_tokens={token.token_id: token for token in draw(st.lists(TOKENS, max_size=2))},
        quotas=draw(st.dictionaries(ENTITIES, QUOTAS, max_size=2)),
        controllers=draw(
            st.sampled_from([{}, {3: RegisterControllerRecord(controller_id=3, incarnation_id=UUID(int=4))}])
        ),
    )


@given(images())
def test_a_snapshot_gives_the_image_again(image: MetadataImage) -> None:
    written = [encode_record(record) for record in snapshot_records(image)]
    again = apply(MetadataImage(), [decode_record(value) for value in written], offset=7, epoch=3).image
    assert again == image
    assert [encode_record(record) for record in snapshot_records(again)] == written


@given(images(), images())
def test_the_difference_of_two_images(old: MetadataImage, new: MetadataImage) -> None:
    delta = difference(old, new)
    after = {topic_id: topic for topic_id, topic in old.topics_by_id.items() if topic_id not in delta.deleted}
    assert not {topic.id for topic in delta.changed.values()} - after.keys()
    after |= {topic.id: topic for topic in (*delta.created.values(), *delta.changed.values())}
    assert after == new.topics_by_id
    for resource in old.configs.keys() | new.configs.keys():
        assert (resource in delta.configs) == (old.configs.get(resource) != new.configs.get(resource))
    for number in old.brokers.keys() | new.brokers.keys():
        assert (number in delta.brokers) == (old.brokers.get(number) != new.brokers.get(number))
    assert delta.acls_changed == (old.acls != new.acls)
    assert delta.quotas_changed == (old.quotas != new.quotas)
    for user, mechanism in old.scram_credentials.keys() | new.scram_credentials.keys():
        if old.scram_credentials.get((user, mechanism)) != new.scram_credentials.get((user, mechanism)):
            assert user in delta.scram_users


def test_the_metadata_version_comes_first() -> None:
    first = next(snapshot_records(Cluster(1).image))
    assert first.name == "metadata.version"  # type: ignore[union-attr]


def test_the_difference_is_what_the_records_in_between_said() -> None:
    cluster = Cluster(2)
    cluster.create(NewTopic(name="a", partition_count=2), NewTopic(name="b"))
    before = cluster.image
    delta = cluster.take(delete_topics(before, [TopicReference(name="b")], cluster.config))
    assert difference(before, cluster.image) == delta
    assert difference(before, before) == difference(before, replace(before, offset=99))


def test_the_cluster_id_is_decided_once_and_is_no_setting() -> None:
    image = apply(MetadataImage(), [cluster_id_record("one")], offset=0, epoch=1).image
    assert (image.cluster_id, image.configs) == ("one", {})
    assert apply(image, [cluster_id_record("one")], offset=1, epoch=1).image.cluster_id == "one"
    with pytest.raises(CorruptMetadataError, match="belongs to cluster 'two', but this is cluster 'one'"):
        apply(image, [cluster_id_record("two")], offset=1, epoch=1)
