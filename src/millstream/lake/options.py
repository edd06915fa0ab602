"""The options of `format("millstream-table")` and of `millstream table`, declared once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from millstream.common import quantities
from millstream.common.close_match import close_match, did_you_mean
from millstream.lake.errors import LakeOptionError

FORMATS: Final = ("delta", "iceberg")
COMPRESSIONS: Final = ("zstd", "snappy", "gzip", "lz4", "none")
CATALOG_PREFIX: Final = "catalog."

HELP: Final[dict[str, str]] = {
    "path": "Location of the table: a directory or s3://bucket/prefix. Not needed if `table` names one in a catalog.",
    "tableFormat": "delta or iceberg. Default: the format of the table at `path`; delta for a new table.",
    "table": "Iceberg: the table's name in the catalog, namespace.name. Default: default.<last part of path>.",
    "catalog.*": "Iceberg: properties of the catalog (catalog.type=rest, catalog.uri=…, catalog.token=…, …).",
    "partitionBy": "Columns, or days(column), hours(column), months(column); _day is days(timestamp). Default: none.",
    "mergeSchema": "Whether new columns are added and types are widened, if the format can. Default: true.",
    "targetFileSize": "Files are closed at this size. Default: 128MB.",
    "compression": "Of Parquet pages: zstd, snappy, gzip, lz4 or none. Default: zstd.",
    "keys": "Writing: columns that identify a row; a row replaces the one with the same keys. Default: append.",
    "sequenceBy": "With keys: a column that grows with each change of a key. A late, older change has no effect.",
    "deleteColumn": "With keys: a boolean column; true deletes the row. It is not stored.",
    "history": "With keys: true keeps all versions of a row, with _valid_from, _valid_to, _current. Default: false.",
    "keepDeletes": "With keys: how long a deletion is known to changes that arrive late. Default: 7d.",
    "columns": "Reading: only these columns, separated by commas.",
    "version": "Reading: the table as it was at this version (Iceberg: snapshot id). Default: the newest.",
    "splitSize": "Reading: about how many bytes of files one task reads. Default: 128MB.",
    "txnAppId": "With txnVersion: identifies a write, so that it can be repeated. Streams: replaces the query id.",
    "checkReplays": "Whether a repeated batch must have the same input as before. Default: true.",
    "txnVersion": "Batch writes: the number of this write under txnAppId; it must grow.",
    "s3.endpoint": "The store's URL, for stores other than AWS.",
    "s3.region": "Default: AWS_REGION, else us-east-1.",
    "s3.access-key": "Default: AWS_ACCESS_KEY_ID, or another source of AWS's libraries.",
    "s3.secret-key": "Default: AWS_SECRET_ACCESS_KEY.",
    "s3.session-token": "Default: AWS_SESSION_TOKEN.",
    "s3.virtual-host-style": "true: the bucket is part of the host name. Default: false with s3.endpoint.",
}
"""Every option and its meaning, for docs and the command line."""

_CHECKPOINT: Final = "checkpointlocation"
_OF_SPARK: Final = frozenset({_CHECKPOINT, "queryname"})
"""Spark passes these to the sink too."""

DEFAULT_FILE_SIZE: Final = 128 << 20


@dataclass(frozen=True, kw_only=True)
class S3Options:
    """Connection to an S3-compatible store; a value of None is found as AWS's own tools find it."""

    endpoint: str | None = None
    region: str | None = None
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    virtual_host_style: bool = False


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """The parsed options of a table."""

    path: str | None = None
    table_format: str | None = None
    table: str | None = None
    catalog: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    partition_by: tuple[str, ...] | None = None
    merge_schema: bool = True
    target_file_size: int = DEFAULT_FILE_SIZE
    compression: str = "zstd"
    columns: tuple[str, ...] | None = None
    version: str | None = None
    split_size: int = DEFAULT_FILE_SIZE
    txn_app_id: str | None = None
    txn_version: int | None = None
    check_replays: bool = True
    keys: tuple[str, ...] | None = None
    sequence_by: str | None = None
    delete_column: str | None = None
    history: bool = False
    keep_deletes_s: float = 7 * 86400.0
    checkpoint: str | None = None
    """Spark's checkpoint, which has the input of a batch."""
    s3: S3Options = field(default_factory=S3Options)
    properties: tuple[tuple[str, str], ...] = ()
    """Properties of a new table; not an option of users."""

    @property
    def name(self) -> str:
        """The name of the table in messages."""
        return self.path or self.table or "?"


def parse_options(given: Mapping[str, str]) -> TableOptions:
    """Parses options by name, without case. LakeOptionError for an unknown name has the most similar one."""
    known = {name.lower(): name for name in HELP if not name.endswith("*")}
    values: dict[str, str] = {}
    catalog: dict[str, str] = {}
    for name, value in given.items():
        lowered = name.lower()
        if lowered in _OF_SPARK:
            continue
        if lowered.startswith(CATALOG_PREFIX) and len(lowered) > len(CATALOG_PREFIX):
            catalog[lowered.removeprefix(CATALOG_PREFIX)] = value
        elif lowered in known:
            values[known[lowered]] = value
        else:
            raise LakeOptionError(f"unknown option {name}{_nearest(lowered, known)}")
    options = TableOptions(
        path=values.get("path") or None,
        table_format=_choice(values, "tableFormat", FORMATS),
        table=values.get("table") or None,
        catalog=tuple(catalog.items()),
        partition_by=_words(values, "partitionBy"),
        merge_schema=_flag(values, "mergeSchema", default=True),
        target_file_size=_size(values, "targetFileSize"),
        compression=_choice(values, "compression", COMPRESSIONS) or "zstd",
        columns=_words(values, "columns"),
        version=values.get("version") or None,
        split_size=_size(values, "splitSize"),
        txn_app_id=values.get("txnAppId") or None,
        txn_version=_whole(values, "txnVersion"),
        check_replays=_flag(values, "checkReplays", default=True),
        keys=_words(values, "keys"),
        sequence_by=values.get("sequenceBy") or None,
        delete_column=values.get("deleteColumn") or None,
        history=_flag(values, "history", default=False),
        keep_deletes_s=_seconds(values, "keepDeletes", 7 * 86400.0),
        checkpoint=next((value for name, value in given.items() if name.lower() == _CHECKPOINT), None),
        s3=S3Options(
            endpoint=values.get("s3.endpoint"),
            region=values.get("s3.region"),
            access_key=values.get("s3.access-key"),
            secret_key=values.get("s3.secret-key"),
            session_token=values.get("s3.session-token"),
            virtual_host_style=_flag(values, "s3.virtual-host-style", default=False),
        ),
    )
    _check_together(options)
    return options


def parse_size(text: str, name: str) -> int:
    """`128MB`, `64m`, `1g` or bytes, as a number of bytes."""
    try:
        return quantities.parse_size(text)
    except ValueError:
        raise LakeOptionError(f"{name}={text}: write a size such as 128MB, 1GB or a number of bytes") from None


def _check_together(options: TableOptions) -> None:
    if options.path is None and options.table is None:
        raise LakeOptionError(
            "the location of the table is missing; set path=DIRECTORY or s3://BUCKET/PREFIX, or table=NAMESPACE.NAME"
        )
    if options.path is None and not options.catalog:
        raise LakeOptionError(f"table={options.table} needs a catalog: catalog.uri=… (and catalog.type=rest or sql)")
    if (options.table or options.catalog) and options.table_format not in (None, "iceberg"):
        raise LakeOptionError(f"table and catalog.* work only with tableFormat=iceberg, not {options.table_format}")
    if options.txn_version is not None and options.txn_app_id is None:
        raise LakeOptionError("txnVersion needs txnAppId; set both")
    if not options.keys and (options.sequence_by or options.delete_column or options.history):
        raise LakeOptionError("sequenceBy, deleteColumn and history need keys: the columns that identify a row")
    if options.keys == ():
        raise LakeOptionError("keys is empty; name the columns that identify a row, separated by commas")
    if (options.s3.access_key is None) != (options.s3.secret_key is None):
        raise LakeOptionError("set both s3.access-key and s3.secret-key, or neither")


def _nearest(name: str, known: Mapping[str, str]) -> str:
    close = close_match(name, known)
    return f"; did you mean {known[close]}?" if close else f". Options are: {', '.join(sorted(HELP))}"


def _choice(values: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str | None:
    value = values.get(name)
    if not value:
        return None
    if value.lower() not in choices:
        hint = did_you_mean(value, choices, otherwise=f"choose one of {', '.join(choices)}", quoted=False)
        raise LakeOptionError(f"{name}={value}: {hint}")
    return value.lower()


def _words(values: Mapping[str, str], name: str) -> tuple[str, ...] | None:
    if name not in values:
        return None
    return tuple(word.strip() for word in values[name].split(",") if word.strip())


def _flag(values: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = values.get(name, "").strip().lower()
    if value in ("", "true", "false"):
        return default if not value else value == "true"
    raise LakeOptionError(f"{name}={values[name]}: write true or false")


def _size(values: Mapping[str, str], name: str) -> int:
    return parse_size(values[name], name) if name in values else DEFAULT_FILE_SIZE


def _seconds(values: Mapping[str, str], name: str, default: float) -> float:
    if name not in values:
        return default
    try:
        return quantities.parse_duration(values[name], unit="ms").total_seconds()
    except ValueError:
        raise LakeOptionError(f"{name}={values[name]}: write a duration such as 12h or 7d") from None


def _whole(values: Mapping[str, str], name: str) -> int | None:
    if name not in values:
        return None
    try:
        return int(values[name])
    except ValueError:
        raise LakeOptionError(f"{name}={values[name]}: write a whole number") from None
