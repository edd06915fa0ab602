"""Which config and mode apply to a subject: its own, its context's, the global ones, or the defaults."""

from collections.abc import Iterator
from typing import Any

from millstream.registry.levels import DEFAULT_LEVEL, DEFAULT_MODE, Level, Mode
from millstream.registry.state import RegistryState
from millstream.registry.subjects import DEFAULT_CONTEXT, Subject

LEVEL = "compatibilityLevel"
NORMALIZE = "normalize"


def scopes(subject: Subject | None) -> Iterator[Subject | None]:
    """From near to far; None is global."""
    if subject is not None:
        yield subject
        if subject.name and subject.context != DEFAULT_CONTEXT:
            yield subject.whole_context
    yield None


def setting(state: RegistryState, subject: Subject | None, name: str) -> Any:
    """The nearest value of one field of the configs; None if nobody set it."""
    for place in scopes(subject):
        value = state.configs.get(place, {}).get(name)
        if value is not None:
            return value
    return None


def level_of(state: RegistryState, subject: Subject | None) -> Level:
    found = setting(state, subject, LEVEL)
    return Level(found) if found in Level.__members__ else DEFAULT_LEVEL


def mode_of(state: RegistryState, subject: Subject | None) -> Mode:
    """READONLY_OVERRIDE of a wider scope is stronger than what is nearer."""
    found = [state.modes[place] for place in scopes(subject) if place in state.modes]
    if Mode.READONLY_OVERRIDE in found:
        return Mode.READONLY_OVERRIDE
    return Mode(found[0]) if found and found[0] in Mode.__members__ else DEFAULT_MODE
