"""Validity of Avro decimals: by the specification an invalid one is ignored, and the value is plain bytes."""

from collections.abc import Mapping
from typing import Any


def is_valid(schema: Mapping[str, Any]) -> bool:
    """Whether the `logicalType` decimal of a schema is valid."""
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or precision < 1:
        return False
    if schema.get("type") == "fixed":
        size = schema.get("size")
        return type(size) is int and size > 0 and 10**precision <= 2 ** (8 * min(size, 10_000) - 1)
    return schema.get("type") == "bytes"
