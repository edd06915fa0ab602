"""Checkpoints of shared queries: which outputs each one has, and how outputs join and leave.

    <root>/<pipeline>/<sink>/                      the checkpoint of a query with one output
    <root>/<pipeline>/<trunk>.sinks[-N]/           the checkpoint of a shared query
        millstream-outputs.json                    its outputs, and how they are written together
    <root>/<pipeline>/<sink>.joined[-N]/           the former checkpoint of an output that joined a shared query

An output is in exactly one query. It joins a shared query only where nothing is lost or doubled: both have committed
their newest batch, both end at the same offsets, and the trunk has no state. Otherwise it keeps its own query, and the
user is told. An output that is new starts at the beginning of its source, in a query of its own or with others that are
new. An output cannot leave a shared query, because its own query would start at the beginning: that is refused.

`plan` only reads; `apply` changes files, after all queries were built. Only checkpoints on a local disk are shared.
"""

import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from millstream.pipeline.engine.failures import PipelineFailedError
from millstream.pipeline.engine.fan_out import TOPICS, writes_of
from millstream.pipeline.engine.planned import PlannedQuery
from millstream.pipeline.engine.sharing import Graph, joined, rows_of
from millstream.pipeline.model import Pipeline, TopicSource
from millstream.pipeline.state import checkpoint_location
from millstream.spark.sink.input_identity import CheckpointEnd, end_of_checkpoint

RECORD = "millstream-outputs.json"


@dataclass
class Division:
    """The queries of a run, and the changes to files that they need."""

    plans: list[PlannedQuery] = field(default_factory=list)
    records: dict[Path, dict[str, object]] = field(default_factory=dict)
    retired: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """For the user: what joined, and what keeps its own query."""

    def apply(self) -> None:
        """Records come first: with a record in place, the next run renames a directory that this one did not."""
        for directory, document in self.records.items():
            directory.mkdir(parents=True, exist_ok=True)
            draft = directory / f"{RECORD}.draft"
            with draft.open("w") as file:
                json.dump(document, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(directory / RECORD)
        for directory in self.retired:
            directory.rename(_free(directory.with_name(f"{directory.name}.joined")))


@dataclass(frozen=True)
class _Unit:
    """A checkpoint that exists, or is to be made, and its outputs."""

    directory: Path
    members: tuple[PlannedQuery, ...]
    end: CheckpointEnd | None
    is_shared: bool


class Checkpoints:
    """The checkpoints of one pipeline on a local disk."""

    def __init__(self, pipeline: Pipeline, checkpoint_dir: str | None, with_state: Collection[str] = ()) -> None:
        self._pipeline = pipeline
        self._graph = Graph(pipeline, frozenset(with_state))
        self._root = Path(checkpoint_location(pipeline, "x", checkpoint_dir).removeprefix("file:")).parent

    def divide(self, wanted: Sequence[PlannedQuery]) -> Division:
        """`wanted`: the queries as `sharing.shared` has them; each is divided by the checkpoints that exist."""
        division = Division()
        kept = self._records()
        for plan in wanted:
            self._divide(plan, kept, division)
        here = {member.name for plan in wanted for member in (plan.members or (plan,))}
        for directory, outputs in kept.items():
            plans = [plan for plan in division.plans if self._directory(plan.name) == directory]
            inside = {member.name for plan in plans for member in plan.members}
            left = (self._names(outputs) & here) - inside
            if len(plans) > 1:
                left |= inside
            if left:
                self._refuse_leaving(directory, sorted(left))
            # A run that ended between the record and the renaming left these behind.
            own = [self._root / name for name in outputs]
            division.retired += [each for each in own if each.exists() and each not in division.retired]
        return division

    def _divide(self, plan: PlannedQuery, kept: dict[Path, list[str]], division: Division) -> None:
        members = plan.members or (plan,)
        units = self._units(plan, members, kept)
        new = [unit.members[0] for unit in units if unit.end is None and not unit.is_shared]
        old = [unit for unit in units if unit.end is not None or unit.is_shared]
        for group in self._mergeable(old):
            self._plan_units(plan, group, division)
        if len(new) == len(members):
            self._plan_new(plan, new, division)
        elif new:
            self._plan_new(plan, new, division)
            names = ", ".join(each.sink for each in new)
            division.notes.append(f"{names}: new, so with a query of its own until it has caught up with the others")

    def _units(self, plan: PlannedQuery, members: Sequence[PlannedQuery], kept: dict[Path, list[str]]) -> list[_Unit]:
        units = []
        waiting = {member.name: member for member in members}
        for directory, outputs in kept.items():
            names = self._names(outputs) if self._trunk_of(directory) == self._trunk(plan) else set()
            inside = tuple(waiting.pop(name) for name in list(waiting) if name in names)
            if inside:
                units.append(_Unit(directory, inside, self._end(directory), is_shared=True))
        for member in waiting.values():
            directory = self._directory(member.name)
            units.append(_Unit(directory, (member,), self._end(directory), is_shared=False))
        return units

    def _mergeable(self, units: Sequence[_Unit]) -> list[list[_Unit]]:
        """Units at the same place, where a batch is complete and there is no state."""
        groups: dict[object, list[_Unit]] = {}
        for unit in units:
            end = unit.end
            fits = end is not None and end.is_committed and len(end.ends) == 1 and not end.has_state
            groups.setdefault(end.ends if fits and end is not None else unit.directory, []).append(unit)
        return list(groups.values())

    def _plan_units(self, plan: PlannedQuery, units: list[_Unit], division: Division) -> None:
        members = tuple(each for each in plan.members or (plan,) if any(each in unit.members for unit in units))
        home = next((unit for unit in units if unit.is_shared), None)
        if home is None and len(units) == 1:
            division.plans.append(members[0])
            if plan.members:
                division.notes.append(
                    f"{members[0].sink}: keeps a query of its own, because its checkpoint does not end where those of "
                    "the others end; it joins them at a start after all have caught up"
                )
            return
        directory = self._free_home(plan, division) if home is None else home.directory
        apart = self._apart(directory, home, members)
        made = replace(self._shared(plan, members, directory), apart=apart)
        if home is None:
            assert units[0].end is not None
            made = replace(made, starting=units[0].end.ends[0])
        division.plans.append(made)
        joining = [unit for unit in units if unit is not home]
        division.records[directory] = self._document(plan, members, made.starting, apart)
        division.retired += [unit.directory for unit in joining]
        if joining:
            names = ", ".join(each.sink for unit in joining for each in unit.members)
            division.notes.append(f"{names}: now in one query, {made.name}, from where their own queries ended")

    def _plan_new(self, plan: PlannedQuery, members: Sequence[PlannedQuery], division: Division) -> None:
        if len(members) == 1:
            division.plans.append(members[0])
            return
        directory = self._free_home(plan, division)
        division.plans.append(self._shared(plan, members, directory))
        division.records[directory] = self._document(plan, members, None)

    def _shared(self, plan: PlannedQuery, members: Sequence[PlannedQuery], directory: Path) -> PlannedQuery:
        name = f"{self._pipeline.name}.{directory.name}"
        found = joined(self._pipeline, self._graph, members) if len(members) > 1 else members[0]
        starting = _read(directory)["starting"] if (directory / RECORD).is_file() else None
        # A shared query stays one when only one of its outputs is left.
        return replace(found, name=name, members=tuple(members), trunk=self._trunk(plan), starting=starting)

    def _trunk(self, plan: PlannedQuery) -> str | None:
        return None if isinstance(plan.of, TopicSource) else self._graph.trunk(rows_of(plan.of))

    def _trunk_of(self, directory: Path) -> str:
        return str(_read(directory)["trunk"])

    def _apart(self, directory: Path, home: _Unit | None, members: Sequence[PlannedQuery]) -> frozenset[str]:
        """An interrupted batch must be repeated as it was begun: the outputs that have a write of their own for it.

        Earlier versions wrote topics with a schema apart, which are written with the others from the next start on.
        """
        if home is None or home.end is None or home.end.is_committed:
            return frozenset()
        before = _read(directory)["writes"]
        now = writes_of(self._pipeline, members)
        apart = frozenset(before.keys() - {TOPICS} if before != now else ())
        if before != writes_of(self._pipeline, members, apart):
            raise PipelineFailedError(
                f"batch {home.end.batch} of {directory.name} was interrupted, and the sinks of the file have changed "
                f"since (together then: {before}, now: {now}). Run the former file once more to complete the batch, "
                "then change it"
            )
        return apart

    def _refuse_leaving(self, directory: Path, outputs: Sequence[str]) -> None:
        names = ", ".join(name.removeprefix(f"{self._pipeline.name}.") for name in outputs)
        raise PipelineFailedError(
            f"{names}: written until now by the shared query {directory.name}, and by this file in another query, "
            "which would start at the beginning of its source. Undo the change (trigger, mode, share_reads, --remote, "
            "or what the sink reads), or give the sink another name: then it starts at the beginning"
        )

    def _document(
        self,
        plan: PlannedQuery,
        members: Sequence[PlannedQuery],
        starting: str | None,
        apart: Collection[str] = (),
    ) -> dict[str, object]:
        return {
            "trunk": self._trunk(plan),
            "outputs": [member.name.removeprefix(f"{self._pipeline.name}.") for member in members],
            "writes": writes_of(self._pipeline, members, apart),
            "starting": starting,
        }

    def _records(self) -> dict[Path, list[str]]:
        """The shared checkpoints that exist, and their outputs."""
        return {
            record.parent: list(_read(record.parent)["outputs"]) for record in sorted(self._root.glob(f"*/{RECORD}"))
        }

    def _names(self, outputs: Sequence[str]) -> set[str]:
        return {f"{self._pipeline.name}.{name}" for name in outputs}

    def _directory(self, query: str) -> Path:
        return self._root / query.removeprefix(f"{self._pipeline.name}.")

    def _end(self, directory: Path) -> CheckpointEnd | None:
        try:
            return end_of_checkpoint(directory)
        except (OSError, ValueError) as error:
            raise PipelineFailedError(f"the checkpoint {directory} cannot be read: {error}") from error

    def _free_home(self, plan: PlannedQuery, division: Division) -> Path:
        directory = self._root / f"{self._trunk(plan)}.sinks"
        return _free(directory, {*division.records})


def _read(directory: Path) -> dict[str, Any]:
    path = directory / RECORD
    try:
        document: dict[str, Any] = json.loads(path.read_text())
        return {"starting": None, **document, "outputs": document["outputs"], "trunk": document["trunk"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PipelineFailedError(
            f"{path} has the outputs of a shared query and cannot be read: {error}; restore it, or use another "
            "--checkpoint-dir"
        ) from error


def _free(directory: Path, taken: "set[Path] | None" = None) -> Path:
    number, found = 1, directory
    while found.exists() or found in (taken or ()):
        number += 1
        found = directory.with_name(f"{directory.name}-{number}")
    return found
