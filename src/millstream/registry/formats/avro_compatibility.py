"""Avro's rules of schema resolution: can a reader's schema read what a writer's has written?"""

from collections.abc import Iterator

from millstream.registry.formats.avro_model import NO_DEFAULT, AvroField, AvroType
from millstream.registry.formats.schema import TOO_COMPLEX, Budget, Problem, TooComplexError

_PROMOTIONS = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}
"""What was written as the key may be read as any of the values."""


def problems_reading(reader: AvroType, writer: AvroType) -> list[Problem]:
    try:
        return list(_Comparison().compare(reader, writer, ""))
    except TooComplexError:
        return [TOO_COMPLEX]


class _Comparison:
    def __init__(self) -> None:
        self._under_way: set[tuple[int, int]] = set()
        """Pairs of named types that are being compared: types may contain themselves."""
        self._budget = Budget()

    def compare(self, reader: AvroType, writer: AvroType, path: str) -> Iterator[Problem]:
        self._budget.step()
        if writer.kind == "union":
            for index, branch in enumerate(writer.branches):
                if reader.kind == "union" and not self._matching_branch(reader, branch):
                    yield Problem(
                        "MISSING_UNION_BRANCH",
                        path or "/",
                        f"the reader's union has no branch for {branch.label}, which may have been written: "
                        f"add {branch.label} to the union",
                    )
                elif reader.kind != "union":
                    yield from self.compare(reader, branch, f"{path}/{index}" if len(writer.branches) > 1 else path)
        elif reader.kind == "union":
            if not self._matching_branch(reader, writer):
                yield Problem(
                    "MISSING_UNION_BRANCH",
                    path or "/",
                    f"no branch of the reader's union takes {writer.label}: add {writer.label} to the union",
                )
        elif reader.kind != writer.kind:
            if reader.kind not in _PROMOTIONS.get(writer.kind, ()):
                yield Problem(
                    "TYPE_MISMATCH",
                    path or "/",
                    f"the reader wants {reader.label}, the writer wrote {writer.label}: "
                    f"keep {writer.label}, or read a union of both",
                )
        else:
            yield from self._same_kind(reader, writer, path)

    def _same_kind(self, reader: AvroType, writer: AvroType, path: str) -> Iterator[Problem]:
        if reader.items is not None and writer.items is not None:
            yield from self.compare(
                reader.items, writer.items, f"{path}/{'items' if reader.kind == 'array' else 'values'}"
            )
        if not reader.name:
            return
        if (id(reader), id(writer)) in self._under_way:
            return
        if not _same_name(reader, writer):
            yield Problem(
                "NAME_MISMATCH",
                f"{path}/name",
                f"the reader's {reader.kind} is {reader.name}, the writer's is {writer.name}: "
                f"keep the name, or add {writer.name!r} to the aliases of {reader.name}",
            )
        self._under_way.add((id(reader), id(writer)))
        if reader.kind == "record":
            for index, row in enumerate(reader.fields):
                yield from self._field(row, writer, f"{path}/fields/{index}")
        elif reader.kind == "enum":
            missing = [symbol for symbol in writer.symbols if symbol not in reader.symbols]
            if missing and reader.default is NO_DEFAULT:
                yield Problem(
                    "MISSING_ENUM_SYMBOLS",
                    f"{path}/symbols",
                    f"the reader's enum {reader.name} lacks {', '.join(missing)}: add them, or give the enum a default",
                )
        elif reader.size != writer.size:
            yield Problem(
                "FIXED_SIZE_MISMATCH",
                f"{path}/size",
                f"{reader.name} has {reader.size} bytes for the reader and {writer.size} for the writer: "
                "keep the size, or add a type with another name",
            )
        self._under_way.discard((id(reader), id(writer)))

    def _field(self, row: AvroField, writer: AvroType, path: str) -> Iterator[Problem]:
        written = _field_of(row, writer)
        if written is not None:
            yield from self.compare(row.type, written.type, f"{path}/type")
        elif row.default is NO_DEFAULT:
            yield Problem(
                "READER_FIELD_MISSING_DEFAULT_VALUE",
                path,
                f"field {row.name!r} was not written and has no default: give it one",
            )

    def _matching_branch(self, union: AvroType, written: AvroType) -> bool:
        return any(not list(self.compare(branch, written, "")) for branch in union.branches)


def _same_name(reader: AvroType, writer: AvroType) -> bool:
    """Names match without their namespace, as Avro's specification has it; or by an alias of the reader."""
    return reader.short_name == writer.short_name or writer.name in reader.aliases


def _field_of(row: AvroField, writer: AvroType) -> AvroField | None:
    by_name = {written.name: written for written in writer.fields}
    return next((by_name[name] for name in (row.name, *row.aliases) if name in by_name), None)
