"""Parses the target of an offset reset from the form. The reset itself is in `millstream.admin`."""

from datetime import datetime
from enum import Enum

from millstream.admin.offsets import ResetTarget
from millstream.console.console import UserError


class ResetMode(Enum):
    """The choices of the form, with their labels."""

    EARLIEST = "to the earliest offset"
    LATEST = "to the latest offset"
    TIME = "to a time"
    OFFSET = "to an offset"
    SHIFT = "shift by"


def parse_target(mode: ResetMode, text: str) -> ResetTarget:
    """The target from the choice and the text beside it. UserError if the text is not valid."""
    text = text.strip()
    match mode:
        case ResetMode.EARLIEST:
            return ResetTarget.earliest()
        case ResetMode.LATEST:
            return ResetTarget.latest()
        case ResetMode.TIME:
            try:
                return ResetTarget.to_time(int(datetime.fromisoformat(text).timestamp() * 1000))
            except (ValueError, OverflowError, OSError):
                raise UserError("not a time: enter a time such as 2026-01-31T12:00 or 2026-01-31T12:00:00Z") from None
        case ResetMode.OFFSET:
            offset = _number(text)
            if offset < 0:
                raise UserError("an offset cannot be negative: choose 'shift by' to move back")
            return ResetTarget.to_offset(offset)
        case ResetMode.SHIFT:
            return ResetTarget.shift_by(_number(text))


def _number(text: str) -> int:
    try:
        return int(text.replace(",", "").replace("_", ""))
    except ValueError:
        raise UserError("not a whole number: enter a number such as 42 or -100") from None
