"""The largest requests that an API admits, made from its schema: one array full of rows, for every array it has."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from millstream.formats.protocol.schema import Field, Structure, request_schema

TOPIC = "known"
Path = tuple[str, ...]
_BASE: dict[str, dict[str, Any]] = {
    "produce": {"acks": 1, "transactional_id": None},
    "offset_commit": {"member_id": "", "generation_id_or_member_epoch": -1},
    "txn_offset_commit": {"member_id": "", "generation_id": -1},
    "create_topics": {"num_partitions": 1, "replication_factor": 1, "validate_only": True},
    "join_group": {"member_id": "", "session_timeout_ms": 10_000, "rebalance_timeout_ms": 100},
    "share_fetch": {"share_session_epoch": 0, "max_bytes": 1 << 20, "max_records": 100},
    "share_acknowledge": {"share_session_epoch": 1},
    "metadata": {"allow_auto_topic_creation": False},
    "delete_records": {"timeout_ms": 1000},
    "describe_topic_partitions": {"response_partition_limit": 2000},
    "describe_configs": {"resource_type": 32},
    "alter_configs": {"resource_type": 32},
    "incremental_alter_configs": {"resource_type": 32},
    "consumer_group_heartbeat": {"member_epoch": 0, "rebalance_timeout_ms": 1000},
    "elect_leaders": {"timeout_ms": 1000},
    "delete_topics": {"timeout_ms": 1000},
}


def requests(api: str, rows: int) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """A label, a version and the fields of each."""
    schema = request_schema(api)
    low, high = schema.versions.low, schema.versions.high
    for path in _arrays(schema.root, high):
        yield f"{'.'.join(path)}", high, _fields(schema.root, high, path, rows, "unknown", api)
    for version in sorted({low, high}):
        deepest = max(_arrays(schema.root, version), key=len, default=())
        if deepest:
            names = "known" if version == high else "unknown"
            yield f"{'.'.join(deepest)} {names}", version, _fields(schema.root, version, deepest, rows, names, api)
        if len(deepest) > 1:  # many at the top, one in each
            fields = _fields(schema.root, version, deepest, rows, "unknown", api, wide=True)
            yield f"{'.'.join(deepest)} wide", version, fields


def _arrays(structure: Structure, version: int) -> Iterator[Path]:
    for each in structure.fields:
        if version not in each.versions:
            continue
        if each.type.startswith("[]"):
            yield (each.name,)
        if each.children is not None:
            for inner in _arrays(each.children, version):
                yield (each.name, *inner)


def _fields(
    structure: Structure, version: int, path: Path, rows: int, names: str, api: str, number: int = 0, wide: bool = False
) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for each in structure.fields:
        if version not in each.versions:
            continue
        if path and each.name == path[0]:
            count = 1
            if each.type.startswith("[]") and (wide or len(path) == 1):
                count = rows
            items = [_value(each, version, path[1:], 1 if wide else rows, names, api, at) for at in range(count)]
            fields[each.name] = items if each.type.startswith("[]") else items[0]
        elif not each.type.startswith("[]") and each.type != "{}":
            fields[each.name] = _BASE.get(api, {}).get(each.name, _scalar(each, each.type, names, number))
        elif each.type.startswith("[]"):
            fields[each.name] = []
        elif version not in each.nullable and each.children is not None:
            fields[each.name] = _fields(each.children, version, (), rows, names, api)
    return fields


def _value(each: Field, version: int, path: Path, rows: int, names: str, api: str, number: int) -> Any:
    if each.children is not None:
        return _fields(each.children, version, path, rows, names, api, number)
    return _scalar(each, each.type.removeprefix("[]"), names, number)


def _scalar(each: Field, kind: str, names: str, number: int) -> Any:
    if kind == "string":
        if names == "known" and each.name in ("name", "topic", "topic_name", "topics", "topic_names"):
            return TOPIC
        if each.name in ("group_id", "member_id", "transactional_id", "protocol_type") and not number:
            return "hostile"
        return f"{each.name.replace('_', '-')}-{number}"
    if kind == "uuid":
        return UUID(int=number + (7 << 64))
    if kind in ("bytes", "records"):
        return b"x"
    if kind == "bool":
        return False
    if each.name.startswith("partition") or kind == "int64":
        return number if names == "unknown" else 0
    return each.default() if not each.type.startswith("[]") else number % 100
