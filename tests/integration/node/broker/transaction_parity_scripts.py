"""What Kafka and Millstream are asked about transactions; see `transaction_parity`."""

import time
from typing import Any

from tests import wire as wires
from tests.integration.node.broker.keyless_parity import keyless
from tests.integration.node.broker.transaction_parity import Client, Script, Talk
from tests.wire import fetch_fields

LARGE_TIMEOUT_MS = 900_001
KINDS = (True, False)
"""Clients that add partitions by writing, and those of before. Of version 0, Kafka cannot bear the former."""


# InitProducerId


def starting(talk: Talk) -> None:
    """InitProducerId in all versions: new, again, with what one was, and with what is wrong."""
    Client(talk, "first", adds=True)
    for version in range(7):
        talk.ask(f"v{version} idempotent", "init_producer_id", version, transactional_id=None, transaction_timeout_ms=0)
        name = talk.name(f"v{version}")
        fields: dict[str, Any] = {"transactional_id": name, "transaction_timeout_ms": 1000}
        talk.ask(f"v{version} new", "init_producer_id", version, **fields)
        again = talk.ask(f"v{version} again", "init_producer_id", version, **fields)
        for timeout in (0, -1, LARGE_TIMEOUT_MS):
            bad = fields | {"transaction_timeout_ms": timeout}
            talk.ask(f"v{version} timeout {timeout}", "init_producer_id", version, **bad)
        empty = fields | {"transactional_id": ""}
        talk.ask(f"v{version} empty id", "init_producer_id", version, **empty)
        if version < 3 or again is None:
            continue
        who, epoch = again.producer_id, again.producer_epoch
        expectations = {
            "right": (who, epoch),
            "last": (who, epoch),
            "before": (who, epoch - 1),
            "later": (who, epoch + 5),
            "other": (who + 100_000, epoch),
            "only id": (who, -1),
            "only epoch": (-1, epoch),
            "unlikely epoch": (who, -2),
            "unlikely id": (-2, epoch),
            "now": (who, epoch + 1),
        }
        for label, (producer_id, producer_epoch) in expectations.items():
            asked = fields | {"producer_id": producer_id, "producer_epoch": producer_epoch}
            talk.ask(f"v{version} {label}", "init_producer_id", version, **asked)
        unknown = fields | {"transactional_id": talk.name(f"v{version}u"), "producer_id": 4711, "producer_epoch": 3}
        talk.ask(f"v{version} unknown id, expected", "init_producer_id", version, **unknown)


def idempotent(talk: Talk) -> None:
    """InitProducerId without a transactional id, with and without a producer id."""
    for producer_id, epoch in ((-1, -1), (5_000_000, 0), (5_000_000, 32766), (5_000_000, 32767), (5, -1), (-1, 5)):
        fields = {"transactional_id": None, "producer_id": producer_id, "producer_epoch": epoch}
        talk.ask(f"{producer_id}/{epoch}", "init_producer_id", 4, transaction_timeout_ms=0, **fields)
    talk.ask("2pc", "init_producer_id", 6, transactional_id=None, transaction_timeout_ms=0, enable2_pc=True)
    talk.ask("keep", "init_producer_id", 6, transactional_id=None, transaction_timeout_ms=0, keep_prepared_txn=True)


def two_phase(talk: Talk) -> None:
    """InitProducerId with enable2Pc and keepPreparedTxn."""
    topic = talk.topic()
    client = Client(talk, adds=True)
    fields: dict[str, Any] = {"transactional_id": client.name, "transaction_timeout_ms": 60_000}
    found = talk.ask("2pc", "init_producer_id", 6, enable2_pc=True, **fields)
    assert found is not None
    client.id, client.epoch = found.producer_id, found.producer_epoch
    talk.ask("described", "describe_transactions", 0, transactional_ids=[client.name])
    if client.id < 0:
        return
    client.put(topic, "a")
    talk.ask("described", "describe_transactions", 0, transactional_ids=[client.name])
    client.end(committed=True)


# AddPartitionsToTxn


def adding(talk: Talk) -> None:
    topic = talk.topic()
    for version in range(4):
        client = Client(talk, f"v{version}", adds=False)
        api = "add_partitions_to_txn"
        unknown = talk.name("unknown")
        talk.ask("one", api, version, **client.adding(topic, 0))
        talk.ask("again", api, version, **client.adding(topic, 0))
        talk.ask("more", api, version, **client.adding(topic, 0, 1))
        talk.ask("none", api, version, **client.adding(topic))
        talk.ask("unknown partition", api, version, **client.adding(topic, 0, 7))
        talk.ask("negative partition", api, version, **client.adding(topic, -1))
        talk.ask("unknown topic", api, version, **client.adding(unknown, 0))
        talk.ask("internal topic", api, version, **client.adding("__transaction_state", 0))
        talk.ask("twice in one", api, version, **client.adding(topic, 0, 0))
        talk.ask("later epoch", api, version, **client.adding(topic, 0, producer_epoch=client.epoch + 1))
        talk.ask("earlier epoch", api, version, **client.adding(topic, 0, producer_epoch=client.epoch - 1))
        talk.ask("other producer", api, version, **client.adding(topic, 0, producer_id=client.id + 100_000))
        talk.ask("unknown id", api, version, **client.adding(topic, 0, transactional_id=talk.name("nobody")))
        talk.ask("empty id", api, version, **client.adding(topic, 0, transactional_id=""))
        talk.ask("described", "describe_transactions", 0, transactional_ids=[client.name])
        client.end(committed=True)
        talk.ask("after the end", api, version, **client.adding(topic, 0))
        client.end(committed=False)


def adding_by_brokers(talk: Talk) -> None:
    topic = talk.topic()
    api = "add_partitions_to_txn"
    for version in (4, 5):
        for verify_only in (True, False):
            client = Client(talk, f"v{version}{verify_only}", adds=True)

            def row(client: Client = client, verify_only: bool = verify_only, **changed: Any) -> dict[str, Any]:
                topics = [{"name": topic, "partitions": [0]}]
                return client.who | {"verify_only": verify_only, "topics": topics} | changed

            def ask(label: str, *rows: dict[str, Any], version: int = version) -> None:
                talk.ask(f"v{version} {label}", api, version, transactions=list(rows))

            ask("before", row())
            ask("both", row(topics=[{"name": topic, "partitions": [0, 1]}]))
            ask("unknown partition", row(topics=[{"name": topic, "partitions": [0, 9]}]))
            ask("unknown topic", row(topics=[{"name": talk.name("unknown"), "partitions": [0]}]))
            ask("no topics", row(topics=[]))
            ask("later epoch", row(producer_epoch=client.epoch + 1))
            ask("earlier epoch", row(producer_epoch=client.epoch - 1))
            ask("other producer", row(producer_id=client.id + 100_000))
            ask("unknown id", row(transactional_id=talk.name("nobody")))
            ask("empty id", row(transactional_id=""))
            ask("two", row(), row(transactional_id=talk.name("nobody")))
            ask("the same twice", row(), row())
            client.put(topic, "a")
            ask("during", row())
            ask("during, other", row(topics=[{"name": topic, "partitions": [0, 1]}]))
            client.end(committed=True)
            ask("after", row())
            ask("after, in the name of before", row(producer_epoch=client.epoch - 1))


def adding_offsets(talk: Talk) -> None:
    api = "add_offsets_to_txn"
    for version in range(5):
        client = Client(talk, f"v{version}", adds=False)
        group = talk.group()
        talk.ask("one", api, version, group_id=group, **client.who)
        talk.ask("again", api, version, group_id=group, **client.who)
        talk.ask("empty group", api, version, group_id="", **client.who)
        talk.ask("later epoch", api, version, group_id=group, **(client.who | {"producer_epoch": 9}))
        talk.ask("earlier epoch", api, version, group_id=group, **(client.who | {"producer_epoch": client.epoch - 1}))
        talk.ask("other producer", api, version, group_id=group, **(client.who | {"producer_id": 987_654}))
        talk.ask("unknown id", api, version, group_id=group, **(client.who | {"transactional_id": talk.name("no")}))
        talk.ask("empty id", api, version, group_id=group, **(client.who | {"transactional_id": ""}))
        client.end(committed=True)
        talk.ask("after", api, version, group_id=group, **client.who)
        client.end(committed=False)


# TxnOffsetCommit


def committing_offsets(talk: Talk) -> None:
    topic = talk.topic()
    api = "txn_offset_commit"
    for version in range(6):
        client = Client(talk, f"v{version}", adds=version >= 5)
        group = talk.group(f"group{version}")
        unknown = talk.name("unknown")

        def rows(name: str = topic, metadata: str | None = "m", offset: int = 5, index: int = 0) -> Any:
            one = {"partition_index": index, "committed_offset": offset, "committed_metadata": metadata}
            return [{"name": name, "partitions": [one]}]

        def ask(
            label: str, client: Client = client, version: int = version, group: str = group, **changed: Any
        ) -> None:
            fields = client.who | {"group_id": group, "topics": rows()} | changed
            talk.ask(f"v{version} {label}", api, version, **fields)

        def fetched(label: str, version: int = version, group: str = group) -> None:
            wanted = [{"group_id": group, "topics": [{"name": topic, "partition_indexes": [0, 1]}]}]
            for stable in (False, True):
                fields = {"groups": wanted, "require_stable": stable}
                talk.ask(f"v{version} {label}, stable {stable}", "offset_fetch", 9, **fields)

        if version < 5:
            ask("not added")
            talk.ask("added", "add_offsets_to_txn", 3, group_id=group, **client.who)
        ask("one")
        fetched("pending")
        if version >= 3:
            ask("unknown member", member_id="nobody", generation_id=1)
            ask("member without generation", member_id="nobody")
            ask("generation without member", generation_id=1)
            ask("unknown instance", group_instance_id="instance")
        ask("empty group", group_id="")
        ask("unknown topic", topics=rows(unknown))
        ask("unknown partition", topics=rows(index=17))
        ask("negative offset", topics=rows(offset=-1))
        ask("offset -2", topics=rows(offset=-2))
        ask("no metadata", topics=rows(metadata=None))
        ask("metadata 64", topics=rows(metadata="x" * 64))
        ask("metadata 65", topics=rows(metadata="x" * 65, index=1))
        ask("no topics", topics=[])
        ask("later epoch", producer_epoch=client.epoch + 1)
        ask("earlier epoch", producer_epoch=client.epoch - 1)
        ask("other producer", producer_id=client.id + 100_000)
        ask("no producer", producer_id=-1, producer_epoch=-1)
        ask("unknown id", transactional_id=talk.name("nobody"))
        ask("empty id", transactional_id="")
        client.end(committed=version % 2 == 1)
        fetched("ended")
        if version >= 5:
            ask("in the name of before", producer_epoch=client.epoch - 1)
        ask("after")
        talk.ask("described", "describe_transactions", 0, transactional_ids=[client.name])
        talk.ask(f"v{version} end", "end_txn", 5 if client.adds else 3, committed=False, **client.who)
        talk.settle(client.name)


def offsets_of_members(talk: Talk) -> None:
    """TxnOffsetCommit of a classic group that has a member."""
    topic = talk.topic()
    client = Client(talk, adds=True)
    group = talk.group()
    joining = {
        "group_id": group,
        "session_timeout_ms": 60_000,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    while (joined := talk.call("join_group", 5, member_id="", **joining)).error_code in (14, 15, 16):
        time.sleep(0.1)
    joined = talk.call("join_group", 5, member_id=joined.member_id, **joining)
    rows = [{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 3, "committed_metadata": ""}]}]
    member = {"member_id": joined.member_id, "generation_id": joined.generation_id}

    def ask(label: str, **changed: Any) -> None:
        fields = client.who | member | {"group_id": group, "topics": rows} | changed
        talk.ask(label, "txn_offset_commit", 5, **fields)

    ask("before the assignment")
    assignments = [{"member_id": joined.member_id, "assignment": b""}]
    talk.call("sync_group", 3, group_id=group, assignments=assignments, **member)
    ask("member")
    ask("earlier generation", generation_id=joined.generation_id - 1)
    ask("later generation", generation_id=joined.generation_id + 1)
    ask("no generation", generation_id=-1)
    ask("other member", member_id="other")
    ask("nobody", member_id="", generation_id=-1)
    ask("no member", member_id="")
    ask("instance", group_instance_id="instance")
    talk.call("leave_group", 3, group_id=group, members=[{"member_id": joined.member_id}])
    ask("left")
    client.end(committed=True)


def offsets_of_consumers(talk: Talk) -> None:
    """TxnOffsetCommit of a group of the consumer protocol."""
    topic = talk.topic()
    client = Client(talk, adds=True)
    group, member_id = talk.group(), "AAAAAAAAAAAAAAAAAAAAAw"
    joining = {"member_id": member_id, "member_epoch": 0, "rebalance_timeout_ms": 60_000, "topic_partitions": []}
    joined = talk.call("consumer_group_heartbeat", 1, group_id=group, subscribed_topic_names=[topic], **joining)
    rows = [{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 3, "committed_metadata": ""}]}]

    def ask(label: str, version: int = 5, **changed: Any) -> None:
        fields = client.who | {"group_id": group, "topics": rows, "member_id": member_id} | changed
        talk.ask(label, "txn_offset_commit", version, **fields)

    ask("member", generation_id=joined.member_epoch)
    ask("earlier epoch", generation_id=joined.member_epoch - 1)
    ask("later epoch", generation_id=joined.member_epoch + 1)
    ask("no epoch", generation_id=-1)
    ask("other member", member_id="other", generation_id=joined.member_epoch)
    ask("nobody", member_id="", generation_id=-1)
    ask("instance of nobody", member_id="", generation_id=-1, group_instance_id="instance")
    ask("nobody with an epoch", member_id="", generation_id=joined.member_epoch)
    ask("instance", group_instance_id="instance", generation_id=joined.member_epoch)
    for version in (3, 4):
        ask(f"v{version}", version, generation_id=joined.member_epoch)
        ask(f"v{version} earlier epoch", version, generation_id=joined.member_epoch - 1)
    leaving = {"member_id": member_id, "member_epoch": -1}
    talk.call("consumer_group_heartbeat", 1, group_id=group, **leaving)
    ask("left", generation_id=joined.member_epoch)
    client.end(committed=True)


def pending_offsets(talk: Talk) -> None:
    """What else may be done with a group while offsets of it wait for the end of a transaction."""
    topic = talk.topic()
    client, other = (Client(talk, text, adds=True) for text in ("id", "other"))
    group = talk.group()

    def rows(index: int, offset: int) -> Any:
        one = {"partition_index": index, "committed_offset": offset, "committed_metadata": "m"}
        return [{"name": topic, "partitions": [one]}]

    def put(who: Client, index: int, offset: int) -> None:
        talk.ask("in a transaction", "txn_offset_commit", 5, group_id=group, topics=rows(index, offset), **who.who)

    def fetched(label: str) -> None:
        for version in range(1, 8):
            topics = [{"name": topic, "partition_indexes": [0, 1]}]
            for stable in (False, True) if version >= 7 else (False,):
                fields = {"group_id": group, "topics": topics, "require_stable": stable}
                talk.ask(f"{label} v{version}, stable {stable}", "offset_fetch", version, **fields)
        for version in (8, 9, 10):
            wanted = [{"name": topic, "topic_id": talk.topic_id(topic), "partition_indexes": [0, 1]}]
            for named in (wanted, None):
                for stable in (False, True):
                    asked: dict[str, Any] = {"group_id": group, "topics": named}
                    fields = {"groups": [asked], "require_stable": stable}
                    label_of = f"{label} v{version}, all {named is None}, stable {stable}"
                    talk.ask(label_of, "offset_fetch", version, **fields)

    put(client, 0, 5)
    fetched("one pending")
    talk.ask("plain", "offset_commit", 9, group_id=group, topics=rows(0, 7))
    talk.ask("plain", "offset_commit", 9, group_id=group, topics=rows(1, 8))
    fetched("plain beside it")
    put(other, 0, 9)
    put(other, 1, 9)
    deleted = [{"name": topic, "partitions": [{"partition_index": 0}]}]
    talk.ask("offsets deleted", "offset_delete", 0, group_id=group, topics=deleted)
    fetched("one deleted")
    talk.ask("group deleted", "delete_groups", 2, groups_names=[group])
    talk.ask("groups", "describe_groups", 5, groups=[group])
    fetched("group deleted")
    client.end(committed=True)
    fetched("one committed")
    other.end(committed=False)
    fetched("other aborted")
    talk.ask("group deleted", "delete_groups", 2, groups_names=[group])
    fetched("group deleted in the end")


# EndTxn


def ending(talk: Talk) -> None:
    topic = talk.topic()
    for version in range(6 if talk.version else 5):
        client = Client(talk, f"v{version}", adds=version >= 5)

        def ask(label: str, committed: bool, client: Client = client, version: int = version, **changed: Any) -> None:
            verb = "commit" if committed else "abort"
            fields = client.who | changed
            response = talk.ask(f"v{version} {verb} {label}", "end_txn", version, committed=committed, **fields)
            talk.settle(client.name)
            if version >= 5 and response is not None and not response.error_code and not changed:
                client.id, client.epoch = response.producer_id, response.producer_epoch
                client.sequence.clear()

        for committed in (True, False):
            ask("without one", committed)
            ask("without one, again", committed)
        for committed in (True, False):
            client.put(topic, "a")
            ask("later epoch", committed, producer_epoch=client.epoch + 1)
            ask("earlier epoch", committed, producer_epoch=client.epoch - 1)
            ask("other producer", committed, producer_id=client.id + 100_000)
            ask("unknown id", committed, transactional_id=talk.name("nobody"))
            ask("empty id", committed, transactional_id="")
            was = client.epoch
            ask("it", committed)
            ask("again in the old name", committed, producer_epoch=was)
            ask("other outcome in the old name", not committed, producer_epoch=was)
            ask("older name", committed, producer_epoch=was - 1)
            ask("again", committed)
            ask("other outcome", not committed)
        talk.ask("described", "describe_transactions", 0, transactional_ids=[client.name])


def ending_in_other_versions(talk: Talk) -> None:
    """Clients of one kind begin what clients of the other kind end."""
    topic = talk.topic()
    for adds in (True, False):
        for version in (3, 4, 5):
            client = Client(talk, f"{adds}{version}", adds=adds)
            client.put(topic, "a")
            response = talk.ask(f"v{version} end", "end_txn", version, committed=True, **client.who)
            talk.settle(client.name)
            assert response is not None
            talk.ask("described", "describe_transactions", 0, transactional_ids=[client.name])
            talk.ask(f"v{version} end again", "end_txn", version, committed=True, **client.who)


# Produce


def producing(talk: Talk) -> None:
    """One batch after another, in every version."""
    for version in (3, 8, 10, 11, 12, 13):
        topic = talk.topic(f"topic{version}")
        client = Client(talk, f"v{version}", adds=version >= 12)

        def ask(
            label: str,
            batch: bytes,
            index: int = 0,
            topic: str = topic,
            version: int = version,
            client: Client = client,
            **changed: Any,
        ) -> None:
            fields = client.producing(topic, batch, index, **changed)
            if version >= 13:
                fields["topic_data"][0]["topic_id"] = talk.topic_id(topic)
            talk.ask(f"v{version} {label}", "produce", version, **fields)

        if not client.adds:
            ask("not added", client.batch("x"))
            talk.ask("added", "add_partitions_to_txn", 3, **client.adding(topic, 0, 1))
        ask("no id", client.batch("a"), transactional_id=None)
        ask("empty id", client.batch("a"), transactional_id="")
        ask("other id", client.batch("a"), transactional_id=talk.name("nobody"))
        ask("other producer", client.batch("a", producer_id=client.id + 100_000))
        ask("later epoch", client.batch("a", producer_epoch=client.epoch + 1))
        ask("earlier epoch", client.batch("a", producer_epoch=client.epoch - 1))
        ask("no producer", client.batch("a", producer_id=-1, producer_epoch=-1, base_sequence=-1))
        ask("no sequence", client.batch("a", base_sequence=-1))
        ask("begins with 3", client.batch("a", base_sequence=3))
        ask("first", client.batch("a", "b"))
        ask("first again", client.batch("a", "b"))
        ask("gap", client.batch("c", base_sequence=5))
        ask("no id, open", client.batch("c", base_sequence=2), transactional_id=None)
        ask("other id, open", client.batch("c", base_sequence=2), transactional_id=talk.name("nobody"))
        ask("empty id, open", client.batch("d", base_sequence=3), transactional_id="")
        ask("plain batch of the producer, open", client.batch("p", base_sequence=4, transactional=False))
        ask("earlier epoch, open", client.batch("c", base_sequence=2, producer_epoch=client.epoch - 1))
        ask("later epoch, open", client.batch("c", base_sequence=2, producer_epoch=client.epoch + 1))
        ask("later epoch from 0, open", client.batch("c", base_sequence=0, producer_epoch=client.epoch + 1))
        plain = wires.batch(b"plain")
        ask("plain batch with the id", plain, 1)
        ask("plain batch without", plain, 1, transactional_id=None)
        ask("plain batch with the id, acks 1", plain, 1, acks=1)
        ask("control batch", client.batch("c", control=True, base_sequence=2))
        ask("unknown partition", client.batch("c"), 7)
        talk.ask("producers", "describe_producers", 0, topics=[{"name": topic, "partition_indexes": [0, 1]}])
        client.end(committed=True)
        talk.ask("producers", "describe_producers", 0, topics=[{"name": topic, "partition_indexes": [0, 1]}])
        if client.adds:
            ask("late, in the name of before", client.batch("l", base_sequence=2, producer_epoch=client.epoch - 1))
            ask("next begins with 2", client.batch("n", base_sequence=2))
            ask("next", client.batch("n"))
        else:
            ask("late", client.batch("l", base_sequence=2))
            ask("from 0", client.batch("l", base_sequence=0))
            talk.ask("added", "add_partitions_to_txn", 3, **client.adding(topic, 0))
            ask("from 0", client.batch("l", base_sequence=0))
            ask("next", client.batch("l", base_sequence=4))
        client.end(committed=False)
        fields = fetch_fields([(topic, 0, 0)]) | {"isolation_level": 1}
        talk.ask("read", "fetch", 12, **fields)


def producing_together(talk: Talk) -> None:
    """Several partitions in one request of which some are wrong."""
    for version in (10, 11, 12):
        topic = talk.topic(f"topic{version}", 3)
        client = Client(talk, f"v{version}", adds=version >= 12)
        if not client.adds:
            talk.ask("added", "add_partitions_to_txn", 3, **client.adding(topic, 0, 1, 2))

        def ask(
            label: str,
            *batches: tuple[int, bytes],
            topic: str = topic,
            version: int = version,
            client: Client = client,
            **changed: Any,
        ) -> None:
            fields = client.producing(topic, b"", **changed)
            rows = [{"index": index, "records": batch} for index, batch in batches]
            fields["topic_data"] = [{"name": topic, "partition_data": rows}]
            talk.ask(f"v{version} {label}", "produce", version, **fields)

        plain = wires.batch(b"plain")
        other = client.batch("o", producer_id=client.id + 100_000)
        ask("two producers", (0, client.batch("a")), (1, other))
        ask("two epochs", (0, client.batch("a")), (1, client.batch("a", producer_epoch=client.epoch + 1)))
        ask("one transactional, one plain", (0, client.batch("a")), (1, plain))
        ask("one that is not there", (0, client.batch("b", base_sequence=1)), (9, client.batch("a")))
        ask("one without sequence", (0, client.batch("c", base_sequence=2)), (2, client.batch("a", base_sequence=7)))
        ask("two batches", (0, client.batch("d", base_sequence=3) + client.batch("e", base_sequence=4)))
        ask("transactional and plain", (0, client.batch("f", base_sequence=4) + plain))
        client.end(committed=True)


def epochs(talk: Talk) -> None:
    """Sequences after the epoch was raised, and a producer that came back."""
    topic = talk.topic()
    for adds in KINDS if talk.version else (False,):
        client = Client(talk, f"id{adds}", adds=adds)
        client.put(topic, "a")
        zombie = (client.id, client.epoch)
        version = 12 if adds else 10
        client.begin()
        talk.settle(client.name)

        def ask(label: str, batch: bytes, client: Client = client, version: int = version) -> None:
            talk.ask(label, "produce", version, **client.producing(topic, batch))

        if not adds:
            talk.ask("zombie adds", "add_partitions_to_txn", 3, **client.adding(topic, 0, producer_epoch=zombie[1]))
        late = client.batch("z", producer_id=zombie[0], producer_epoch=zombie[1], base_sequence=1)
        ask("zombie", late)
        if not adds:
            talk.ask("added", "add_partitions_to_txn", 3, **client.adding(topic, 0))
        ask("zombie, next is open", late)
        ask("begins with 1", client.batch("b", base_sequence=1))
        ask("begins with 0", client.batch("b"))
        ask("zombie, next is open", late)
        for end_version in (3, 5):
            talk.ask(
                f"zombie ends {end_version}",
                "end_txn",
                end_version,
                committed=True,
                **(client.who | {"producer_epoch": zombie[1]}),
            )
        client.end(committed=True)
        talk.ask("producers", "describe_producers", 0, topics=[{"name": topic, "partition_indexes": [0]}])


def being_late(talk: Talk) -> None:
    """What a client may still do whose transaction was aborted by the coordinator."""
    late: list[tuple[Client, bool, str]] = []
    for adds in KINDS if talk.version else (False,):
        for committed in (True, False):
            text = f"{adds}{committed}"
            topic = talk.topic(f"topic{text}")
            client = Client(talk, text, adds=adds, timeout_ms=2000)
            client.put(topic, "a")
            late.append((client, committed, topic))
    for client, committed, topic in late:
        talk.until_aborted(client.name)
        talk.ask("described", "describe_transactions", 0, transactional_ids=[client.name])
        talk.ask("producers", "describe_producers", 0, topics=[{"name": topic, "partition_indexes": [0]}])
        batch = client.batch("b", base_sequence=1)
        talk.ask("puts", "produce", 12 if client.adds else 10, **client.producing(topic, batch))
        talk.ask("adds", "add_partitions_to_txn", 3, **client.adding(topic, 0))
        talk.ask("ends", "end_txn", 5 if client.adds else 3, committed=committed, **client.who)
        fields = {"transactional_id": client.name, "transaction_timeout_ms": 60_000}
        who = {"producer_id": client.id, "producer_epoch": client.epoch}
        talk.ask("begins as who it was", "init_producer_id", 5, **fields, **who)
        talk.ask("described", "describe_transactions", 0, transactional_ids=[client.name])


def idempotence(talk: Talk) -> None:
    """Sequences and epochs of producers that have no transactions."""
    topic = talk.topic()
    base = talk.call("init_producer_id", 4, transactional_id=None, transaction_timeout_ms=0).producer_id
    for version in (3, 12):

        def ask(
            label: str, sequence: int, *values: str, epoch: int = 5, acks: int = -1, version: int = version, **more: Any
        ) -> None:
            who = {"producer_id": base + version * 1000, "producer_epoch": epoch, "base_sequence": sequence} | more
            data = wires.batch(*(value.encode() for value in values or ("x",)), **who)
            rows = [{"name": topic, "partition_data": [{"index": 0, "records": data}]}]
            talk.ask(f"v{version} {label}", "produce", version, acks=acks, timeout_ms=9000, topic_data=rows)

        ask("begins with 7", 7)
        ask("again", 7)
        ask("gap", 9)
        ask("next", 8, "a", "b", "c")
        ask("part of it", 9)
        ask("longer than it", 8, "a", "b", "c", "d")
        ask("acks 1", 11, acks=1)
        for sequence in range(12, 18):
            ask(f"number {sequence}", sequence)
        ask("one of the last five", 13)
        ask("one before the last five", 12)
        ask("earlier epoch", 18, epoch=4)
        ask("later epoch, goes on", 18, epoch=6)
        ask("later epoch, from 0", 0, epoch=6)
        ask("epoch before that", 18)
        ask("no sequence", -1, epoch=6)
        ask("largest epoch", 0, epoch=32767)
        ask("largest sequence", (1 << 31) - 1, producer_id=base + version * 1000 + 1)
        ask("over the end", 0, producer_id=base + version * 1000 + 1)
        ask("to the end", (1 << 31) - 2, "a", "b", "c", producer_id=base + version * 1000 + 2)
        ask("over the end", 1, producer_id=base + version * 1000 + 2)
        ask("negative producer", 0, producer_id=-5)
        talk.ask("producers", "describe_producers", 0, topics=[{"name": topic, "partition_indexes": [0]}])


# WriteTxnMarkers


def markers(talk: Talk) -> None:
    for version in (1, 2):
        for tv in (0, 1, 2) if version == 2 else (0,):
            topic = talk.topic(f"topic{version}{tv}")
            client = Client(talk, f"v{version}{tv}", adds=False)

            def ask(
                label: str,
                *names: str,
                version: int = version,
                tv: int = tv,
                client: Client = client,
                topic: str = topic,
                **changed: Any,
            ) -> None:
                marker = {
                    "producer_id": client.id,
                    "producer_epoch": client.epoch,
                    "transaction_result": True,
                    "coordinator_epoch": 0,
                    "transaction_version": tv,
                    "topics": [{"name": topic, "partition_indexes": [0]}],
                } | changed
                talk.ask(f"v{version} tv{tv} {label}", "write_txn_markers", version, markers=[marker])

            ask("unknown topic", topics=[{"name": talk.name("unknown"), "partition_indexes": [0]}])
            ask("unknown partition", topics=[{"name": topic, "partition_indexes": [9]}])
            ask("nothing open, again")
            client.put(topic, "a")
            ask("earlier epoch", producer_epoch=client.epoch - 1)
            ask("earlier coordinator", coordinator_epoch=-1)
            ask("it")
            ask("again")
            client.sequence.clear() if tv == 2 else None
            ask("later epoch", producer_epoch=client.epoch + 1)
            ask("earlier coordinator", coordinator_epoch=-1, producer_epoch=client.epoch + 1)
            ask("earlier epoch", producer_epoch=client.epoch)
            ask("abort of a producer nobody knows", producer_id=client.id + 77_000, transaction_result=False)
            talk.ask("producers", "describe_producers", 0, topics=[{"name": topic, "partition_indexes": [0, 1]}])
            talk.ask("read", "fetch", 12, **(fetch_fields([(topic, 0, 0)]) | {"isolation_level": 1}))
    talk.ask("none", "write_txn_markers", 1, markers=[])


# Tools


def describing(talk: Talk) -> None:
    topic = talk.topic()
    client = Client(talk, adds=True)

    def described(label: str) -> None:
        talk.ask(label, "describe_transactions", 0, transactional_ids=[client.name])
        talk.ask(label, "describe_producers", 0, topics=[{"name": topic, "partition_indexes": [0]}])

    described("new")
    client.put(topic, "a", "b")
    client.put(topic, "c")
    described("open")
    client.end(committed=False)
    described("aborted")
    client.put(topic, "d")
    client.end(committed=True)
    described("committed")
    client.end(committed=False)
    described("aborted empty")
    names = [talk.name("nobody"), "", client.name]
    talk.ask("several", "describe_transactions", 0, transactional_ids=names)
    talk.ask("none", "describe_transactions", 0, transactional_ids=[])
    rows = [{"name": topic, "partition_indexes": [0, 5]}, {"name": talk.name("no"), "partition_indexes": [0]}]
    talk.ask("producers", "describe_producers", 0, topics=rows)
    talk.ask("producers of none", "describe_producers", 0, topics=[])
    talk.ask("producers, no topic", "describe_producers", 0, topics=[{"name": "", "partition_indexes": [0]}])
    talk.ask("producers, bad topic", "describe_producers", 0, topics=[{"name": "a b", "partition_indexes": [0]}])


def listing(talk: Talk) -> None:
    topic = talk.topic()
    opened, done, fresh = (Client(talk, text, adds=True) for text in ("open", "done", "fresh"))
    opened.put(topic, "a")
    done.put(topic, "b", partition=1)
    done.end(committed=True)
    mine = [opened.id, done.id, fresh.id]

    def ask(label: str, version: int, **fields: Any) -> None:
        fields = {"state_filters": [], "producer_id_filters": mine} | fields
        response = talk.call("list_transactions", version, **fields)
        response.transaction_states.sort(key=lambda row: row.transactional_id)
        response.unknown_state_filters.sort()
        talk.note(f"v{version} {label}", talk.shown(response, "list_transactions", version))

    prefix = talk.name("")
    for version in range(3):
        ask("all", version)
        ask("open", version, state_filters=["Ongoing"])
        ask("two states", version, state_filters=["Ongoing", "Empty"])
        ask("unknown state", version, state_filters=["Nonsense"])
        ask("unknown and known state", version, state_filters=["Nonsense", "ongoing", "Ongoing", "Dead"])
        ask("one producer", version, producer_id_filters=[done.id])
        ask("no such producer", version, producer_id_filters=[987_654_321])
        if version >= 1:
            for duration in (-2, -1, 0, 1, 3_600_000):
                ask(f"duration {duration}", version, duration_filter=duration)
        if version >= 2:
            patterns = (None, "", f"{prefix}o.*", "o.*", ".*open", "^.*open$", f"{prefix}(open|done)", "(", "[a", "*")
            for pattern in patterns:
                ask(f"pattern {pattern}", version, transactional_id_pattern=pattern)
    opened.end(committed=True)


def finding(talk: Talk) -> None:
    Client(talk, adds=True)
    for version in range(7):
        for kind in (1,) if version else (0,):
            for key in (talk.name("id"), ""):
                fields = {"coordinator_keys": [key]} if version >= 4 else {"key": key}
                talk.ask(f"v{version} {key!r}", "find_coordinator", version, key_type=kind, **fields)
    talk.ask("several", "find_coordinator", 6, key_type=1, coordinator_keys=["a", "", "b"])
    talk.ask("none", "find_coordinator", 6, key_type=1, coordinator_keys=[])
    talk.ask("other type", "find_coordinator", 6, key_type=9, coordinator_keys=["a"])
    talk.ask("other type, old", "find_coordinator", 3, key_type=9, key="a")
    talk.ask("share, old", "find_coordinator", 5, key_type=2, coordinator_keys=["g:AAAAAAAAAAAAAAAAAAAAAQ:0"])


# Reading


def reading(talk: Talk) -> None:
    """Fetch and ListOffsets with read_committed, at every offset of a log with transactions that overlap."""
    topic = talk.topic()
    one, two = (Client(talk, text, adds=True) for text in ("one", "two"))
    one.put(topic, "a", "b")
    time.sleep(0.01)  # no two batches have the same time
    two.put(topic, "c")
    time.sleep(0.01)
    one.put(topic, "d")
    time.sleep(0.01)
    talk.ask(
        "plain",
        "produce",
        9,
        acks=-1,
        timeout_ms=9000,
        topic_data=[{"name": topic, "partition_data": [{"index": 0, "records": wires.batch(b"plain")}]}],
    )

    def read(label: str, ends: int) -> None:
        for offset in range(ends + 1):
            for isolation in (0, 1):
                fields = fetch_fields([(topic, 0, offset)]) | {"isolation_level": isolation}
                talk.ask(f"{label}, at {offset}, isolation {isolation}", "fetch", 12, **fields)

    def listed(label: str) -> None:
        for version in (1, 2, 4, 7, 8, 9, 10, 11):
            for isolation in (0, 1) if version >= 2 else (0,):
                for timestamp in (-1, -2, -3, 1, 1 << 60) if version in (7, 11) else (-1, 1):
                    row = {"partition_index": 0, "timestamp": timestamp}
                    fields = {"replica_id": -1, "isolation_level": isolation, "timeout_ms": 1000}
                    topics = [{"name": topic, "partitions": [row]}]
                    talk.ask(
                        f"{label} v{version} {timestamp}, isolation {isolation}",
                        "list_offsets",
                        version,
                        topics=topics,
                        **fields,
                    )

    read("both open", 5)
    listed("both open")
    one.end(committed=False)
    read("one aborted", 6)
    listed("one aborted")
    two.end(committed=True)
    read("two committed", 7)
    listed("two committed")
    two.put(topic, "e")
    two.end(committed=False)
    read("two aborted", 9)
    for version in (4, 5, 7, 11, 12):
        fields = fetch_fields([(topic, 0, 3)]) | {"isolation_level": 1}
        talk.ask(f"v{version}", "fetch", version, **fields)
    for version in (13, 16, 17, 18):
        fields = fetch_fields([(talk.topic_id(topic), 0, 3)], by_id=True) | {"isolation_level": 1}
        talk.ask(f"v{version}", "fetch", version, **fields)
    for most in (1, 80, 200):
        fields = fetch_fields([(topic, 0, 0)], partition_max_bytes=most) | {"isolation_level": 1}
        talk.ask(f"at most {most}", "fetch", 12, **fields)
    talk.ask("empty partition", "fetch", 12, **(fetch_fields([(topic, 1, 0)]) | {"isolation_level": 1}))
    talk.ask("beyond", "fetch", 12, **(fetch_fields([(topic, 0, 50)]) | {"isolation_level": 1}))


def waiting(talk: Talk) -> None:
    """A fetch with min_bytes gets a response in the end, with what is stable."""
    topic = talk.topic()
    client = Client(talk, adds=True)
    client.put(topic, "a" * 100)
    for isolation in (0, 1):
        for least in (1, 50, 100_000):
            for wait in (0, 50):
                fields = fetch_fields([(topic, 0, 0)], min_bytes=least, max_wait_ms=wait)
                fields["isolation_level"] = isolation
                talk.ask(f"isolation {isolation}, {least} bytes in {wait}", "fetch", 12, **fields)
    client.end(committed=True)


CURRENT: tuple[Script, ...] = (
    starting,
    idempotent,
    two_phase,
    adding,
    adding_by_brokers,
    adding_offsets,
    committing_offsets,
    offsets_of_members,
    offsets_of_consumers,
    pending_offsets,
    ending,
    ending_in_other_versions,
    producing,
    producing_together,
    epochs,
    being_late,
    idempotence,
    markers,
    describing,
    listing,
    finding,
    reading,
    waiting,
    keyless,
)
SCRIPTS: dict[int, tuple[Script, ...]] = {
    2: CURRENT,
    1: (adding, adding_by_brokers, committing_offsets, ending, producing, epochs, being_late, markers),
    0: (adding, ending, epochs, being_late),
}
"""By transaction.version of the cluster."""
