"""Levels of features: what a new cluster begins with, and how they change."""

from dataclasses import replace
from uuid import UUID

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import BrokerId
from millstream.node.metadata.brokers import register_controller
from millstream.node.metadata.features import (
    SUPPORTED_FEATURES,
    FeatureUpdate,
    UpgradeType,
    bootstrap_records,
    update_features,
)
from millstream.node.metadata.image import MetadataImage, apply
from millstream.node.metadata.records import (
    ConfigRecord,
    Endpoint,
    FeatureLevelRecord,
    RegisterControllerRecord,
    SupportedFeature,
)
from millstream.node.metadata.topics import NewTopic
from tests.unit.node.metadata.cluster import Cluster

ELR = "eligible.leader.replicas.version"


def update(cluster: Cluster, name: str, level: int, kind: int = UpgradeType.UPGRADE) -> None:
    asked = [FeatureUpdate(name=name, level=level, upgrade_type=kind)]
    cluster.take(update_features(cluster.image, asked, cluster.config))


def test_a_new_cluster_begins_with_the_newest_levels_and_its_id() -> None:
    config = Cluster(0, "min.insync.replicas=2").config
    image = apply(MetadataImage(), bootstrap_records("x", config), offset=0, epoch=1).image
    assert image.features == {feature.name: feature.max_supported_version for feature in SUPPORTED_FEATURES}
    assert image.cluster_id == "x"
    assert image.default_broker_config == {"min.insync.replicas": "2"}


def test_controllers_must_support_the_levels_too() -> None:
    cluster = Cluster(1)
    at = (Endpoint(name="CONTROLLER", host="h", port=9093),)
    first = RegisterControllerRecord(
        controller_id=7, incarnation_id=UUID(int=1), end_points=at, features=SUPPORTED_FEATURES
    )
    cluster.take(register_controller(cluster.image, first))
    assert cluster.image.controllers == {7: first}
    assert not register_controller(cluster.image, first).records  # it is known
    for wrong, code in (
        (replace(first, end_points=()), ErrorCode.INVALID_REGISTRATION),
        (replace(first, features=SUPPORTED_FEATURES[1:]), ErrorCode.UNSUPPORTED_VERSION),
    ):
        with pytest.raises(KafkaError) as refused:
            register_controller(cluster.image, wrong)
        assert refused.value.code == code
    old = replace(cluster.image, features={"metadata.version": 14})
    with pytest.raises(KafkaError, match=r"register from metadata\.version 15"):
        register_controller(old, first)

    update(cluster, "share.version", 0, UpgradeType.SAFE_DOWNGRADE)
    others = [each for each in SUPPORTED_FEATURES if each.name != "share.version"]
    none_yet = SupportedFeature(name="share.version", min_supported_version=0, max_supported_version=0)
    later = replace(first, controller_id=8, features=(*others, none_yet))
    cluster.take(register_controller(cluster.image, later))
    with pytest.raises(KafkaError, match="controller 8 supports levels 0 to 0"):
        update(cluster, "share.version", 1)


def test_a_feature_goes_off_and_on() -> None:
    cluster = Cluster(1)
    update(cluster, "share.version", 0, UpgradeType.SAFE_DOWNGRADE)
    assert "share.version" not in cluster.image.features
    update(cluster, "share.version", 1)
    assert cluster.image.features["share.version"] == 1
    before = len(cluster.log)
    update(cluster, "share.version", 1)
    assert len(cluster.log) == before


@pytest.mark.parametrize(
    ("name", "level", "kind", "message"),
    [
        ("share.version", 0, UpgradeType.UPGRADE, "request a downgrade"),
        ("share.version", 2, UpgradeType.UPGRADE, "the controller supports levels 0 to 1"),
        ("share.version", -1, UpgradeType.SAFE_DOWNGRADE, "less than 0"),
        ("share.version", 1, 0, "unknown upgrade type 0"),
        ("group.version", 1, UpgradeType.SAFE_DOWNGRADE, "request an upgrade"),
        ("what.version", 1, UpgradeType.UPGRADE, "does not support this feature"),
        ("metadata.version", 28, UpgradeType.SAFE_DOWNGRADE, "not safe: .* the lowest safe level is 30"),
        ("metadata.version", 28, UpgradeType.UNSAFE_DOWNGRADE, "unsafe downgrade is not supported"),
        ("metadata.version", 0, UpgradeType.SAFE_DOWNGRADE, "cannot be disabled"),
    ],
)
def test_updates_that_are_refused(name: str, level: int, kind: int, message: str) -> None:
    cluster = Cluster(1)
    cluster.set_feature("group.version", 0)
    good = FeatureUpdate(name=ELR, level=0, upgrade_type=UpgradeType.SAFE_DOWNGRADE)
    bad = FeatureUpdate(name=name, level=level, upgrade_type=kind)
    with pytest.raises(KafkaError, match=message) as refused:
        update_features(cluster.image, [good, bad], cluster.config)
    assert refused.value.code is ErrorCode.INVALID_UPDATE_VERSION


def test_a_metadata_version_goes_back_as_far_as_its_records_are_the_same() -> None:
    cluster = Cluster(1)
    cluster.set_feature("metadata.version", 29)
    with pytest.raises(KafkaError, match="the lowest safe level is 23"):
        update(cluster, "metadata.version", 22, UpgradeType.SAFE_DOWNGRADE)
    update(cluster, "metadata.version", 23, UpgradeType.SAFE_DOWNGRADE)
    assert cluster.image.features["metadata.version"] == 23
    update(cluster, "metadata.version", 30)


def test_brokers_have_a_say() -> None:
    cluster = Cluster(1)
    cluster.set_feature("share.version", 0)
    broker = cluster.image.brokers[BrokerId(1)]
    narrow = SupportedFeature(name="share.version", min_supported_version=0, max_supported_version=0)
    for features, message in (((), "broker 1 does not support"), ((narrow,), "broker 1 supports levels 0 to 0")):
        image = replace(cluster.image, brokers={broker.id: replace(broker, features=features)})
        with pytest.raises(KafkaError, match=message):
            update_features(image, [FeatureUpdate(name="share.version", level=1)], cluster.config)


def test_only_checking_and_asking_twice() -> None:
    cluster = Cluster(1)
    off = FeatureUpdate(name=ELR, level=0, upgrade_type=UpgradeType.SAFE_DOWNGRADE)
    decision = update_features(cluster.image, [off], cluster.config, validate_only=True)
    assert (decision.records, [response.name for response in decision.results]) == ((), [ELR])
    with pytest.raises(KafkaError, match="twice"):
        update_features(cluster.image, [off, off], cluster.config)


def test_without_eligible_leaders_no_one_is_forgotten() -> None:
    cluster = Cluster(3)
    cluster.create(NewTopic(name="a", assignments=[(0, (1, 2)), (1, (1, 2)), (2, (3, 1))]))
    cluster.write([ConfigRecord(resource_type=4, resource_name="", name="min.insync.replicas", value="2")])
    cluster.fence(2, 1)
    assert cluster.partition().isr == ()
    assert cluster.partition(number=2).eligible_leader_replicas == (1,)
    update(cluster, ELR, 0, UpgradeType.SAFE_DOWNGRADE)
    assert (cluster.partition().isr, cluster.partition().eligible_leader_replicas) == ((2, 1), ())
    assert (cluster.partition(number=2).isr, cluster.partition(number=2).eligible_leader_replicas) == ((3,), ())
    cluster.unfence(1)
    assert cluster.partition().leader == 1
    assert set(cluster.partition().isr) == {1, 2}


def test_with_eligible_leaders_all_have_the_same_minimum() -> None:
    cluster = Cluster(2)
    cluster.set_feature(ELR, 0)
    cluster.write([ConfigRecord(resource_type=4, resource_name="1", name="min.insync.replicas", value="2")])
    decision = update_features(cluster.image, [FeatureUpdate(name=ELR, level=1)], cluster.config)
    assert decision.records[0] == FeatureLevelRecord(name=ELR, feature_level=1)
    cluster.take(decision)
    assert cluster.image.default_broker_config == {"min.insync.replicas": "1"}
    assert cluster.image.broker_config(1) == {}
