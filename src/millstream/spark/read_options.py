"""The table of the options of `spark.read` and `spark.readStream`: name, values, default and explanation of each.

Parsing and checks are in `options`. The page docs/spark.md shows this table.
"""

from millstream.spark.option_table import (
    Option,
    OptionTable,
    choice,
    count,
    count_or_zero,
    duration_s,
    flag,
    names,
    size_bytes,
    size_or_zero,
    text,
)
from millstream.spark.source.positions import parse_headers, parse_offsets, parse_timestamp, parse_timestamps

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
ERROR_COLUMN = "_error"
FORMATS = ("raw", "json", "avro", "protobuf")
BAD_RECORDS = ("column", "deadLetterTopic", "fail")

READ_OPTIONS = OptionTable(
    [
        Option("kafka.bootstrap.servers", "host:port,…", "", "both", "Bootstrap servers. Required.", text),
        Option("subscribe", "names", "", "both", "Topics to read, separated by commas.", text),
        Option(
            "subscribePattern", "pattern", "", "both", "Regular expression that whole topic names must match.", text
        ),
        Option("assign", "JSON", "", "both", 'Partitions to read: `{"orders": [0, 1]}`.', text),
        Option(
            "startingOffsets",
            "earliest, latest, committed, table:path or JSON",
            "latest (stream), earliest (batch)",
            "both",
            "Where a new query starts; a restarted query continues at its checkpoint. JSON has an offset for each "
            'partition: `{"orders": {"0": 23, "1": -2}}`, where -2 is the earliest and -1 the latest. `committed`: the '
            "committed offsets of `groupId`. `table:path`: first the rows of a table (docs/lake.md), then the records "
            "after it in the topic.",
            parse_offsets,
        ),
        Option(
            "startingOffsetsByTimestamp",
            "JSON",
            "",
            "both",
            'The first record at or after a time in ms, for each partition: `{"orders": {"0": 1500000000000}}`. '
            "Takes precedence over `startingOffsets`.",
            parse_timestamps,
        ),
        Option(
            "startingTimestamp",
            "milliseconds",
            "",
            "both",
            "The same with one time for all partitions. Takes precedence over the other two.",
            parse_timestamp,
        ),
        Option(
            "startingOffsetsByTimestampStrategy",
            "error or latest",
            "error",
            "both",
            "What happens if a partition has no record at or after the starting time.",
            choice("error", "latest"),
        ),
        Option(
            "endingOffsets",
            "latest or JSON",
            "latest",
            "batch",
            "Where a batch query ends (exclusive); -1 is the latest. Resolved once, when the query is planned.",
            parse_offsets,
        ),
        Option(
            "endingOffsetsByTimestamp",
            "JSON",
            "",
            "batch",
            "For each partition: the query ends before the first record at or after a time in ms, or at the latest "
            "offset if there is none. Takes precedence over `endingOffsets`.",
            parse_timestamps,
        ),
        Option(
            "endingTimestamp",
            "milliseconds",
            "",
            "batch",
            "The same with one time for all partitions. Takes precedence over the other two.",
            parse_timestamp,
        ),
        Option(
            "failOnDataLoss",
            "true or false",
            "true",
            "both",
            "true: the query fails if records are gone that it has not read (retention, a deleted or recreated topic). "
            "false: it logs a warning and continues. Gaps from compaction and transactions are not data loss.",
            flag,
        ),
        Option(
            "maxOffsetsPerTrigger",
            "count",
            "no limit",
            "stream",
            "Most offsets per micro-batch, the first one included; partitions get a share in proportion to their lag.",
            count,
        ),
        Option(
            "maxBytesPerTrigger",
            "size",
            "no limit",
            "stream",
            "About how many bytes per micro-batch, as stored (compressed): 64m, 1g.",
            size_bytes,
        ),
        Option(
            "minOffsetsPerTrigger",
            "count",
            "1",
            "stream",
            "A micro-batch waits for this many offsets, at most for `maxTriggerDelay`. AvailableNow does not wait.",
            count,
        ),
        Option(
            "maxTriggerDelay",
            "duration",
            "15m",
            "stream",
            "How long `minOffsetsPerTrigger` may delay a micro-batch.",
            duration_s,
        ),
        Option(
            "smallBatchBytes",
            "size",
            "1m",
            "stream",
            "The driver reads the rows of micro-batches up to this size itself, in one task; so they are much faster. "
            "0: every partition has a task. No effect with `minPartitions`.",
            size_or_zero,
        ),
        Option(
            "minPartitions",
            "count",
            "one task per partition",
            "both",
            "Least number of tasks, about: large offset ranges are split.",
            count,
        ),
        Option(
            "maxRecordsPerPartition",
            "count",
            "no limit",
            "both",
            "Most offsets per task: larger ranges are split.",
            count,
        ),
        Option("includeHeaders", "true or false", "false", "both", "Adds the column `headers`.", flag),
        Option(
            "columns",
            "names",
            "all",
            "both",
            "Only these columns, in this order. Spark does not prune columns of Python sources, so this saves time: "
            "`value` alone is about twice as fast as all columns.",
            names,
        ),
        Option(
            "groupId",
            "name",
            "",
            "stream",
            "Consumer group to which progress is committed, so that every Kafka tool shows the lag. The query does not "
            "join the group and does not start at its offsets (see `startingOffsets`).",
            text,
        ),
        Option(
            "kafka.isolation.level",
            "read_committed or read_uncommitted",
            "read_committed",
            "both",
            "read_committed leaves out records of open and aborted transactions. (spark-sql-kafka: read_uncommitted.)",
            choice("read_committed", "read_uncommitted"),
        ),
        Option(
            "valueFormat",
            ", ".join(FORMATS),
            "raw",
            "both",
            "Format of values. All but `raw` give typed columns, by the schema registry or `valueSchema`.",
            choice(*FORMATS),
        ),
        Option("keyFormat", ", ".join(FORMATS), "raw", "both", "The same for keys.", choice(*FORMATS)),
        Option(
            "valueSchema",
            "schema",
            "",
            "both",
            "A schema for values, instead of the latest of the registry. json: Spark DDL (`id STRING, amount DOUBLE`), "
            "the JSON of a StructType, or JSON Schema. avro: an Avro schema. protobuf: the text of a .proto file.",
            text,
        ),
        Option("keySchema", "schema", "", "both", "The same for keys.", text),
        Option("valueSubject", "name", "<topic>-value", "both", "The registry's subject for values.", text),
        Option("keySubject", "name", "<topic>-key", "both", "The same for keys.", text),
        Option("valueMessage", "name", "the file's first", "both", "protobuf: the message type of values.", text),
        Option("keyMessage", "name", "the file's first", "both", "The same for keys.", text),
        Option("schema.registry.url", "URL", "", "both", "Address of the schema registry (Confluent's API).", text),
        Option(
            "schema.registry.basic.auth.user.info",
            "user:password",
            "",
            "both",
            "User and password for the schema registry.",
            text,
        ),
        Option(
            "schema.registry.bearer.auth.token",
            "text",
            "",
            "both",
            "Bearer token for the schema registry, instead of user and password.",
            text,
        ),
        Option(
            "schema.registry.ssl.ca.location",
            "PEM file",
            "",
            "both",
            "CA certificates to trust for the schema registry.",
            text,
        ),
        Option(
            "badRecords",
            ", ".join(BAD_RECORDS),
            "column",
            "both",
            "What happens to records that cannot be decoded. `column`: the typed column is null, and "
            f"`{ERROR_COLUMN}` has the reason. `deadLetterTopic`: they are sent to that topic. `fail`: the query ends.",
            choice(*BAD_RECORDS),
        ),
        Option(
            "deadLetterTopic",
            "name",
            "",
            "both",
            "Topic for bad records, unchanged, with headers for their origin and the reason. At least once.",
            text,
        ),
        Option(
            "deadLetterHeaders",
            "JSON",
            "",
            "both",
            'Further headers for dead letters: `{"team": "orders"}`.',
            parse_headers,
        ),
        Option(
            "kafka.max.partition.fetch.bytes",
            "size",
            "4m",
            "both",
            "Most bytes of one fetch; a task holds about four times that.",
            size_bytes,
        ),
        Option(
            "kafkaConsumer.pollTimeoutMs",
            "milliseconds",
            "120000",
            "both",
            "How long a task waits for records, through elections and restarts of brokers.",
            count,
        ),
        Option(
            "fetchOffset.numRetries",
            "count",
            "3",
            "both",
            "Retries of the driver before it reports that offsets or topics are gone.",
            count_or_zero,
        ),
        Option("fetchOffset.retryIntervalMs", "milliseconds", "1000", "both", "Pause between these retries.", count),
        Option(
            "table.*",
            "text",
            "",
            "both",
            "Options of the table in `startingOffsets=table:path`, such as `table.s3.endpoint`.",
            text,
        ),
        Option("kafka.group.id", "name", "", "stream", "Another name for `groupId`.", text),
        Option(
            "groupIdPrefix",
            "name",
            "",
            "both",
            "No effect: this source has no consumers with groups of their own.",
            text,
        ),
    ],
    page="docs/spark.md",
)
