"""Metadata records as bytes: the bytes of Kafka's own serializer, and none that break us."""

from dataclasses import replace
from typing import get_args
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.formats.model.identifiers import BrokerId, TopicId, TopicName
from millstream.node.metadata.records import (
    AbortTransactionRecord,
    AccessControlEntryRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ClientQuotaRecord,
    ConfigRecord,
    CorruptMetadataError,
    DelegationTokenRecord,
    Endpoint,
    EndTransactionRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    QuotaEntity,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    SupportedFeature,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
    ZkMigrationStateRecord,
    decode_record,
    encode_record,
)

ID = TopicId(UUID(bytes=bytes(range(1, 17))))
DIRECTORY = UUID(bytes=bytes(range(0x11, 0x21)))
BROKER = BrokerId(1)
REGISTRATION = RegisterBrokerRecord(
    broker_id=BROKER,
    incarnation_id=ID,
    broker_epoch=7,
    end_points=(Endpoint(name="PLAINTEXT", host="localhost", port=65000, security_protocol=0),),
    features=(SupportedFeature(name="metadata.version", min_supported_version=7, max_supported_version=29),),
    rack="r1",
    fenced=False,
    log_dirs=(DIRECTORY,),
)
PARTITION = PartitionRecord(
    partition_id=3,
    topic_id=ID,
    replicas=(1, 2),
    isr=(1,),
    leader=1,
    leader_epoch=4,
    partition_epoch=5,
    directories=(DIRECTORY, DIRECTORY),
)
ID_HEX = "0102030405060708090a0b0c0d0e0f10"
DIRECTORY_HEX = "1112131415161718191a1b1c1d1e1f20"
PLAINTEXT_AND_VERSION_HEX = (
    "020a504c41494e544558540a6c6f63616c686f7374fde800000002116d657461646174612e76657273696f6e0007001d00"
)

WRITTEN_BY_KAFKA: list[tuple[MetadataRecord, str]] = [
    (
        REGISTRATION,
        f"0100030000000100{ID_HEX}0000000000000007{PLAINTEXT_AND_VERSION_HEX}0372310000010011021{DIRECTORY_HEX[1:]}",
    ),
    (
        RegisterControllerRecord(
            controller_id=1,
            incarnation_id=ID,
            end_points=REGISTRATION.end_points,
            features=REGISTRATION.features,
        ),
        f"011b0000000001{ID_HEX}00{PLAINTEXT_AND_VERSION_HEX}00",
    ),
    (UnregisterBrokerRecord(broker_id=BROKER, broker_epoch=7), "01010000000001000000000000000700"),
    (
        BrokerRegistrationChangeRecord(
            broker_id=BROKER, broker_epoch=7, fenced=-1, in_controlled_shutdown=1, log_dirs=(DIRECTORY,)
        ),
        f"011102000000010000000000000007030001ff010101021102{DIRECTORY_HEX}",
    ),
    (TopicRecord(name=TopicName("orders"), topic_id=ID), f"010200076f7264657273{ID_HEX}00"),
    (
        PARTITION,
        f"01030200000003{ID_HEX}03000000010000000202000000010101000000010000000400000005"
        f"03{DIRECTORY_HEX}{DIRECTORY_HEX}00",
    ),
    (
        replace(
            PARTITION,
            removing_replicas=(2,),
            adding_replicas=(3,),
            leader=-1,
            leader_recovery_state=1,
            eligible_leader_replicas=(2,),
            last_known_elr=(1,),
        ),
        f"01030200000003{ID_HEX}030000000100000002020000000102000000020200000003ffffffff0000000400000005"
        f"03{DIRECTORY_HEX}{DIRECTORY_HEX}030001010105020000000202050200000001",
    ),
    (
        PartitionChangeRecord(partition_id=3, topic_id=ID, leader=2, isr=(2,)),
        f"01050200000003{ID_HEX}0200050200000002010400000002",
    ),
    (
        PartitionChangeRecord(
            partition_id=3,
            topic_id=ID,
            leader=-1,
            isr=(2,),
            replicas=(2, 3),
            removing_replicas=(),
            adding_replicas=(3,),
            leader_recovery_state=1,
            eligible_leader_replicas=(2,),
            last_known_elr=(1,),
            directories=(DIRECTORY, DIRECTORY),
        ),
        f"01050200000003{ID_HEX}09000502000000020104ffffffff0209030000000200000003030101040502000000030501010605"
        f"0200000002070502000000010821{'03'}{DIRECTORY_HEX}{DIRECTORY_HEX}",
    ),
    (RemoveTopicRecord(topic_id=ID), f"010900{ID_HEX}00"),
    (
        ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value="1000"),
        "01040002076f72646572730d726574656e74696f6e2e6d73053130303000",
    ),
    (
        ConfigRecord(resource_type=4, resource_name="", name="log.retention.ms", value=None),
        "0104000401116c6f672e726574656e74696f6e2e6d730000",
    ),
    (
        ProducerIdsRecord(broker_id=BROKER, broker_epoch=7, next_producer_id=2000),
        "010f0000000001000000000000000700000000000007d000",
    ),
    (FeatureLevelRecord(name="metadata.version", feature_level=29), "010c00116d657461646174612e76657273696f6e001d00"),
    (NoOpRecord(), "01140000"),
    (FenceBrokerRecord(id=BROKER, epoch=7), "01070000000001000000000000000700"),
    (UnfenceBrokerRecord(id=BROKER, epoch=7), "01080000000001000000000000000700"),
    (ZkMigrationStateRecord(zk_migration_state=2), "0115000200"),
    (
        BeginTransactionRecord(name="Bootstrap records"),
        "01170001001212426f6f747374726170207265636f726473",
    ),
    (EndTransactionRecord(), "01180000"),
    (AbortTransactionRecord(reason="r"), "0119000100020272"),
    (AbortTransactionRecord(), "01190000"),
    (
        RegisterControllerRecord(
            controller_id=1,
            incarnation_id=ID,
            end_points=REGISTRATION.end_points,
            features=REGISTRATION.features,
        ),
        f"011b0000000001{ID_HEX}00{PLAINTEXT_AND_VERSION_HEX}00",
    ),
    (ClearElrRecord(topic_name="orders"), "011c00076f726465727300"),
    (
        AccessControlEntryRecord(
            id=ID,
            resource_type=2,
            resource_name="orders",
            pattern_type=3,
            principal="User:alice",
            host="*",
            operation=4,
            permission_type=3,
        ),
        f"011200{ID_HEX}02076f7264657273030b557365723a616c696365022a040300",
    ),
    (RemoveAccessControlEntryRecord(id=ID), f"011300{ID_HEX}00"),
    (
        UserScramCredentialRecord(
            name="alice",
            mechanism=1,
            salt=b"\x01\x02",
            stored_key=b"\x03\x04",
            server_key=b"\x05\x06",
            iterations=4096,
        ),
        "010b0006616c696365010301020303040305060000100000",
    ),
    (RemoveUserScramCredentialRecord(name="alice", mechanism=2), "01160006616c6963650200"),
    (
        DelegationTokenRecord(
            owner="User:alice",
            requester="User:bob",
            renewers=("User:carol",),
            issue_timestamp=1,
            max_timestamp=3,
            expiration_timestamp=2,
            token_id="t1",
        ),
        "010a000b557365723a616c69636509557365723a626f62020b557365723a6361726f6c"
        "00000000000000010000000000000003000000000000000203743100",
    ),
    (RemoveDelegationTokenRecord(token_id="t1"), "011a0003743100"),
    (
        ClientQuotaRecord(
            entity=(
                QuotaEntity(entity_type="user", entity_name="alice"),
                QuotaEntity(entity_type="client-id", entity_name=None),
            ),
            key="producer_byte_rate",
            value=1024.0,
        ),
        "010e0003057573657206616c696365000a636c69656e742d69640000"
        "1370726f64756365725f627974655f7261746540900000000000000000",
    ),
    (
        ClientQuotaRecord(
            entity=(QuotaEntity(entity_type="ip", entity_name="10.0.0.1"),),
            key="connection_creation_rate",
            value=0.0,
            remove=True,
        ),
        "010e00020369700931302e302e302e310019636f6e6e656374696f6e5f6372656174696f6e5f7261746500000000000000000100",
    ),
]
"""Made with MetadataRecordSerde of Apache Kafka 4.2; those of ACLs, users, tokens, quotas, transactions,
controllers and of fenced brokers with 4.3.1."""


@pytest.mark.parametrize(("record", "expected"), WRITTEN_BY_KAFKA, ids=lambda value: type(value).__name__)
def test_records_are_the_bytes_that_kafka_writes(record: MetadataRecord, expected: str) -> None:
    assert encode_record(record).hex() == expected
    assert decode_record(bytes.fromhex(expected)) == record


def test_every_kind_of_record_was_compared() -> None:
    assert {type(record) for record, _ in WRITTEN_BY_KAFKA} == set(get_args(MetadataRecord))


def test_an_older_version_of_a_record_is_read() -> None:
    older = f"01000000000001{ID_HEX}0000000000000007{PLAINTEXT_AND_VERSION_HEX}000100"
    assert decode_record(bytes.fromhex(older)) == replace(REGISTRATION, rack=None, fenced=True, log_dirs=())


INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
IDS = st.uuids().map(TopicId)
BROKER_IDS = INT32.map(BrokerId)
NUMBERS = st.lists(INT32, max_size=4).map(tuple)
DIRECTORIES = st.lists(st.uuids(), max_size=3).map(tuple)
INT8 = st.integers(-128, 127)
EPOCHS = st.integers(-(1 << 63), (1 << 63) - 1)
INT16 = st.integers(-(1 << 15), (1 << 15) - 1)
RECORDS: st.SearchStrategy[MetadataRecord] = st.one_of(
    st.builds(
        RegisterBrokerRecord,
        broker_id=BROKER_IDS,
        incarnation_id=st.uuids(),
        broker_epoch=EPOCHS,
        end_points=st.lists(
            st.builds(Endpoint, name=st.text(), host=st.text(), port=st.integers(0, 65535), security_protocol=INT16),
            max_size=2,
        ).map(tuple),
        features=st.lists(
            st.builds(SupportedFeature, name=st.text(), min_supported_version=INT16, max_supported_version=INT16),
            max_size=2,
        ).map(tuple),
        rack=st.none() | st.text(),
        fenced=st.booleans(),
        in_controlled_shutdown=st.booleans(),
        is_migrating_zk_broker=st.booleans(),
        log_dirs=DIRECTORIES,
        cordoned_log_dirs=st.none() | DIRECTORIES,
    ),
    st.builds(
        PartitionRecord,
        partition_id=INT32,
        topic_id=IDS,
        replicas=NUMBERS,
        isr=NUMBERS,
        leader=INT32,
        leader_epoch=INT32,
        partition_epoch=INT32,
        removing_replicas=NUMBERS,
        adding_replicas=NUMBERS,
        leader_recovery_state=INT8,
        directories=DIRECTORIES,
        eligible_leader_replicas=st.none() | NUMBERS,
        last_known_elr=st.none() | NUMBERS,
    ),
    st.builds(
        PartitionChangeRecord,
        partition_id=INT32,
        topic_id=IDS,
        isr=st.none() | NUMBERS,
        leader=INT32,
        replicas=st.none() | NUMBERS,
        removing_replicas=st.none() | NUMBERS,
        adding_replicas=st.none() | NUMBERS,
        leader_recovery_state=INT8,
        eligible_leader_replicas=st.none() | NUMBERS,
        last_known_elr=st.none() | NUMBERS,
        directories=st.none() | DIRECTORIES,
    ),
    st.builds(
        BrokerRegistrationChangeRecord,
        broker_id=BROKER_IDS,
        broker_epoch=EPOCHS,
        fenced=INT8,
        in_controlled_shutdown=INT8,
        log_dirs=DIRECTORIES,
        cordoned_log_dirs=st.none() | DIRECTORIES,
    ),
    st.builds(TopicRecord, name=st.text().map(TopicName), topic_id=IDS),
    st.builds(ConfigRecord, resource_type=INT8, resource_name=st.text(), name=st.text(), value=st.none() | st.text()),
    st.builds(ProducerIdsRecord, broker_id=BROKER_IDS, broker_epoch=EPOCHS, next_producer_id=EPOCHS),
    st.builds(FeatureLevelRecord, name=st.text(), feature_level=INT16),
)


@given(RECORDS)
def test_every_record_comes_back(record: MetadataRecord) -> None:
    assert decode_record(encode_record(record)) == record


@given(RECORDS, st.data())
def test_damaged_records_are_corrupt_metadata_or_records(record: MetadataRecord, data: st.DataObject) -> None:
    value = bytearray(encode_record(record))
    value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    del value[data.draw(st.integers(0, len(value))) :]
    try:
        decode_record(bytes(value))
    except CorruptMetadataError:
        pass


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "cannot be read"),
        ("02140000", "frame version 2"),
        ("01630000", "unknown type 99"),
        ("01140100", "unknown version 1"),
        ("0114000000", "1 extra bytes"),
    ],
)
def test_a_corrupt_record_is_an_error_with_its_reason(value: str, message: str) -> None:
    with pytest.raises(CorruptMetadataError, match=message):
        decode_record(bytes.fromhex(value))


@pytest.mark.parametrize("replica_count", [0, 1, 3, 126, 127])
@pytest.mark.parametrize("elr", [None, (), (2,)])
def test_a_partition_written_by_hand_is_as_the_schema_writes_it(
    replica_count: int, elr: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas = tuple(range(replica_count))
    record = PartitionRecord(
        partition_id=7,
        topic_id=TopicId(UUID(int=5)),
        replicas=replicas,
        isr=replicas[:2],
        leader=1,
        leader_epoch=3,
        partition_epoch=4,
        adding_replicas=replicas[1:2],
        directories=tuple(UUID(int=number) for number in replicas),
        eligible_leader_replicas=elr,
    )
    by_hand = encode_record(record)
    monkeypatch.setattr("millstream.node.metadata.records._encode_partition", lambda _: None)
    assert by_hand == encode_record(record)
    assert decode_record(by_hand) == record


def test_records_of_metadata_version_4_3_are_read_and_written() -> None:
    """Kafka 4.3 has cordoned log directories (KIP-1066) as a tagged field of newer versions of two records."""
    directory = UUID("21222324-2526-2728-292a-2b2c2d2e2f30")
    tag = f"1102{directory.hex}"
    registered = decode_record(
        bytes.fromhex("01000400000001" + "00" + "01" * 16 + "00" * 7 + "07010100000001" + "01" + tag)
    )
    assert isinstance(registered, RegisterBrokerRecord)
    assert registered.cordoned_log_dirs == (directory,)
    changed = decode_record(bytes.fromhex("01110300000001" + "00" * 7 + "070103" + tag))
    assert isinstance(changed, BrokerRegistrationChangeRecord)
    assert changed.cordoned_log_dirs == (directory,)
    assert encode_record(changed)[2] == 3 and decode_record(encode_record(changed)) == changed
    assert encode_record(replace(changed, cordoned_log_dirs=None))[2] == 2  # nodes of earlier versions read it
