"""Config and mode, global, of a context and of a subject."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from millstream.registry import errors
from millstream.registry.levels import Level, Mode
from millstream.registry.log import SchemaLog
from millstream.registry.records import Entry, Key, Kind
from millstream.registry.scope import LEVEL, NORMALIZE, level_of, mode_of, scopes, setting
from millstream.registry.state import RegistryState
from millstream.registry.subjects import Subject

_SETTABLE = {"compatibility", LEVEL, NORMALIZE}


class Settings:
    def __init__(self, log: SchemaLog) -> None:
        self._log = log

    def config(self, subject: Subject | None, *, default_to_global: bool) -> dict[str, Any]:
        with self._log.lock:
            state = self._log.state
            if subject is not None and not default_to_global and subject not in state.configs:
                raise errors.no_config_of_its_own(str(subject))
            normalize = setting(state, subject, NORMALIZE)
            level = {LEVEL: str(level_of(state, subject))}
        return level if normalize is None else level | {NORMALIZE: bool(normalize)}

    def set_config(self, subject: Subject | None, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Fields that are not given stay as they are; what is set now is returned."""
        changes = _checked(wanted)

        def decide(state: RegistryState) -> list[Entry]:
            _check_not_overridden(state, subject)
            named = {} if subject is None else {"subject": str(subject)}
            return [Entry(Key(Kind.CONFIG, subject), named | state.configs.get(subject, {}) | changes)]

        self._log.write(decide)
        return dict(wanted)

    def delete_config(self, subject: Subject | None) -> dict[str, Any]:
        """What was set until now."""
        before: list[dict[str, Any]] = []

        def decide(state: RegistryState) -> list[Entry]:
            _check_not_overridden(state, subject)
            if subject is not None and subject not in state.configs:
                raise errors.subject_not_found(str(subject))
            level = state.configs.get(subject, {}).get(LEVEL) or str(level_of(state, subject))
            before[:] = [{LEVEL: level}]
            return [Entry(Key(Kind.CONFIG, subject), None)] if subject in state.configs else []

        self._log.write(decide)
        return before[0]

    def mode(self, subject: Subject | None, *, default_to_global: bool) -> Mode:
        with self._log.lock:
            if subject is not None and not default_to_global and subject not in self._log.state.modes:
                raise errors.no_mode_of_its_own(str(subject))
            return mode_of(self._log.state, subject)

    def set_mode(self, subject: Subject | None, wanted: str, *, force: bool) -> Mode:
        mode: Mode = _named(Mode, wanted, errors.invalid_mode)

        def decide(state: RegistryState) -> list[Entry]:
            _check_not_overridden(state, subject, lifting=mode)
            if mode is Mode.IMPORT and not force and mode_of(state, subject) is not Mode.IMPORT:
                _check_nothing_there(state, subject)
            named = {} if subject is None else {"subject": str(subject)}
            return [Entry(Key(Kind.MODE, subject), named | {"mode": str(mode)})]

        self._log.write(decide)
        return mode

    def delete_mode(self, subject: Subject | None) -> Mode:
        """The mode until now."""
        before: list[Mode] = []

        def decide(state: RegistryState) -> list[Entry]:
            if subject is not None and subject not in state.modes:
                raise errors.subject_not_found(str(subject))
            before[:] = [mode_of(state, subject)]
            return [Entry(Key(Kind.MODE, subject), None)] if subject in state.modes else []

        self._log.write(decide)
        return before[0]


def _checked(wanted: Mapping[str, Any]) -> dict[str, Any]:
    for name in wanted:
        if name not in _SETTABLE:
            raise errors.invalid_level(f"there is no setting {name!r} here: {_nearest(name, _SETTABLE)}")
    changes: dict[str, Any] = {}
    for name in ("compatibility", LEVEL):  # clients use both
        if wanted.get(name) is not None:
            changes[LEVEL] = str(_named(Level, wanted[name], errors.invalid_level))
    if wanted.get(NORMALIZE) is not None:
        if not isinstance(wanted[NORMALIZE], bool):
            raise errors.invalid_level("'normalize' must be true or false")
        changes[NORMALIZE] = wanted[NORMALIZE]
    if not changes:
        raise errors.invalid_level('nothing is to be set: send {"compatibility": "BACKWARD"} or another level')
    return changes


def _named(kind: Any, text: Any, refusal: Any) -> Any:
    name = str(text).upper()
    if name not in kind.__members__:
        raise refusal(f"{text!r} is none: {_nearest(name, kind.__members__)}")
    return kind[name]


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]}?" if near else f"give one of {', '.join(sorted(known))}"


def _check_not_overridden(state: RegistryState, subject: Subject | None, lifting: Mode | None = None) -> None:
    """READONLY_OVERRIDE locks the settings as well, until it is itself replaced where it was set."""
    holders = [place for place in scopes(subject) if state.modes.get(place) == Mode.READONLY_OVERRIDE]
    if holders and not (lifting is not None and holders == [subject]):
        raise errors.not_permitted("mode READONLY_OVERRIDE is set: PUT /mode with another mode first")


def _check_nothing_there(state: RegistryState, subject: Subject | None) -> None:
    for there in state.subjects():
        concerned = subject is None or there == subject or (not subject.name and there.context == subject.context)
        if concerned and state.versions(there):
            raise errors.not_permitted(
                f"cannot import: subject {str(there)!r} has schemas already: delete them, or add ?force=true"
            )
