"""The levels of a node's loggers: DescribeConfigs and IncrementalAlterConfigs on the resource type BROKER_LOGGER.

Levels have Kafka's names. They are those of the process: a restart forgets them, as in Kafka. The loggers are those
that the process has made, by their Python names (`millstream.node`, `millstream.net`), and `root`.
"""

import logging
from collections.abc import Collection, Sequence

from millstream.config.describe import ConfigEntry, describe_logger
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.schema import Message
from millstream.formats.protocol.wire_types import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseResponses,
)
from millstream.node.metadata.configs import ConfigChange, Operation
from millstream.node.metadata.image import ResourceType

ROOT = "root"
TRACE = 5
"""Python has no such level: everything that a logger could write is below DEBUG."""
_LEVELS = {
    "TRACE": TRACE,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
_SUPPORTED = ", ".join(sorted(_LEVELS))


def _loggers() -> dict[str, logging.Logger]:
    known = logging.root.manager.loggerDict
    made = {name: each for name, each in sorted(known.items()) if isinstance(each, logging.Logger)}
    return {ROOT: logging.root, **made}


def _level_name(level: int) -> str:
    return next((name for name, number in _LEVELS.items() if level <= number), "FATAL")


def describe_loggers(name: str, node_id: int, wanted: Collection[str] | None) -> list[ConfigEntry]:
    """The loggers of this node with their levels. `name` is the resource's, which must be this node's id."""
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
    if name != str(node_id):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {node_id} but received {name[:200]}"
        )
    return [
        describe_logger(each, _level_name(logger.getEffectiveLevel()))
        for each, logger in _loggers().items()
        if wanted is None or each in wanted
    ]


def alter_logger_rows(
    request: IncrementalAlterConfigsRequest | Message, node_id: int
) -> IncrementalAlterConfigsResponse | None:
    """The response to a request on loggers alone; None if it has other resources: the controller decides on those."""
    if not request.resources or any(row.resource_type != ResourceType.BROKER_LOGGER for row in request.resources):
        return None
    responses: list[IncrementalAlterConfigsResponseResponses] = []
    for row in request.resources:
        changes = [ConfigChange(each.name, each.config_operation, each.value) for each in row.configs]
        result: IncrementalAlterConfigsResponseResponses = {
            "resource_type": row.resource_type,
            "resource_name": row.resource_name,
        }
        try:
            alter_loggers(row.resource_name, node_id, changes, validate_only=request.validate_only)
        except KafkaError as error:
            result["error_code"], result["error_message"] = error.code, error.message
        responses.append(result)
    return {"responses": responses}


def alter_loggers(name: str, node_id: int, changes: Sequence[ConfigChange], *, validate_only: bool) -> None:
    """Changes levels: all changes, or none and a KafkaError."""
    if not (name.isascii() and name.isdigit()):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name[:200]}")
    if int(name[:20]) != node_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Unexpected node id. Expected {node_id}, but received {name[:200]}"
        )
    loggers = _loggers()
    levels = [_checked(change, loggers) for change in changes]
    if validate_only:
        return
    for logger, level in levels:
        logger.setLevel(level)


def _checked(change: ConfigChange, loggers: dict[str, logging.Logger]) -> tuple[logging.Logger, int]:
    logger = loggers.get(change.name)
    if change.operation not in (Operation.SET, Operation.DELETE):
        verb = next((each.name for each in Operation if each == change.operation), str(change.operation))
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{verb} operation is not allowed for the BROKER_LOGGER resource")
    if logger is None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {change.name[:200]} does not exist!")
    if change.operation == Operation.DELETE:
        if change.name == ROOT:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger is not allowed")
        return logger, logging.NOTSET
    if change.value is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {change.name}")
    level = _LEVELS.get(change.value)
    if level is None:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Cannot set the log level of {change.name} to {change.value[:200]} as it is not a supported log level. "
            f"Valid log levels are {_SUPPORTED}",
        )
    return logger, level
