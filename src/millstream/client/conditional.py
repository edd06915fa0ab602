"""Conditional append (KIP-27): a record that is written only if its partition ends where the writer expects.

librdkafka cannot send such a request, so this part of the client uses Millstream's raw client, with the same settings
of the connection. It is imported with the first conditional record.
"""

import threading
import time
from typing import TYPE_CHECKING

from millstream.client.connection import Connection
from millstream.client.errors import (
    DeadlineError,
    DeliveryError,
    MillstreamError,
    NotAllowedError,
    RefusedError,
    UnexpectedEndError,
    topic_not_found,
)
from millstream.client.record import Message, Published, encode_headers, encode_key, encode_timestamp, encode_value

if TYPE_CHECKING:
    from millstream.raw_client.conditional import ConditionalProducer


class ConditionalPublisher:
    """Thread safe."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._producer: ConditionalProducer | None = None

    def publish(self, topic: str, message: Message, expected_offset: int) -> Published:
        """Writes one record at `expected_offset`. Raises UnexpectedEndError if the partition ends elsewhere."""
        from millstream.formats.records.record import Record
        from millstream.raw_client import RefusedError as Refused
        from millstream.raw_client import SetupError, TopicPartition, UnreachableError, WireError
        from millstream.raw_client.conditional import UnexpectedEndError as Unexpected

        if message.partition is None or message.partition < 0:
            raise RefusedError("expected_offset needs a partition: it is the offset of one partition's end")
        timestamp_ms = encode_timestamp(message.timestamp) or time.time_ns() // 1_000_000
        record = Record(
            encode_key(message.key),
            encode_value(message.value),
            tuple(encode_headers(message.headers) or ()),
            timestamp=timestamp_ms,
        )
        at = TopicPartition(topic, message.partition)
        try:
            self._running().append(at, [record], expected_offset)
        except Unexpected as error:
            raise UnexpectedEndError(str(error), error.expected, error.end_offset) from error
        except Refused as error:
            raise _refused(topic, error.code.name, str(error)) from error
        except UnreachableError as error:
            raise DeadlineError(f"{error}; it is not known whether the record was written") from error
        except SetupError as error:
            raise RefusedError(str(error)) from error
        except WireError as error:
            raise DeliveryError(str(error)) from error
        return Published(topic, message.partition, expected_offset, timestamp_ms)

    def _running(self) -> "ConditionalProducer":
        from millstream.raw_client import Cluster
        from millstream.raw_client.conditional import ConditionalProducer
        from millstream.raw_client.settings import USED

        with self._lock:
            if self._producer is None:
                connection = self._connection
                settings = {name: str(value) for name, value in connection.settings.items() if name in USED}
                cluster = Cluster(
                    connection.bootstrap, settings, client_id="millstream-client", timeout_s=connection.timeout
                )
                self._producer = ConditionalProducer(cluster)
            return self._producer

    def close(self) -> None:
        with self._lock:
            if self._producer is not None:
                self._producer.close()
                self._producer = None


def _refused(topic: str, code: str, text: str) -> MillstreamError:
    if code in ("UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_ID"):
        return topic_not_found(topic)
    if code.endswith("AUTHORIZATION_FAILED"):
        return NotAllowedError(text, code)
    return DeliveryError(text, code)
