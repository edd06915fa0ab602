"""How lake tables are shown: tables for people, documents for scripts."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from millstream.cli.terminal import print_table

if TYPE_CHECKING:
    from millstream.lake.table import LakeTable, Rewritten, TableVersion


def summary_document(table: "LakeTable") -> dict[str, Any]:
    files = table.scan().files
    return {
        "table": table.name,
        "format": table.format,
        "version": table.version,
        "rows": sum(file.rows for file in files),
        "files": len(files),
        "bytes": sum(file.size for file in files),
        "partition_by": table.partitioning.text,
    }


def description_document(table: "LakeTable") -> dict[str, Any]:
    ends = _topic_ends(table)
    return {
        **summary_document(table),
        "columns": {each.name: str(each.type) for each in table.schema},
        "topics": [{"topic": topic, "partition": partition, "next_offset": end} for (topic, partition), end in ends],
    }


def version_document(version: "TableVersion") -> dict[str, Any]:
    return {
        "version": version.version,
        "time": version.time.isoformat(),
        "operation": version.operation,
        "details": version.details,
    }


def rewritten_document(result: "Rewritten") -> dict[str, Any]:
    return dict(vars(result))


def show_tables(tables: Sequence["LakeTable"]) -> None:
    documents = [summary_document(table) for table in tables]
    print_table(
        ["TABLE", "FORMAT", "VERSION", "ROWS", "FILES", "SIZE", "PARTITIONED BY"],
        [
            (
                each["table"],
                each["format"],
                each["version"],
                each["rows"],
                each["files"],
                size_text(each["bytes"]),
                each["partition_by"],
            )
            for each in documents
        ],
    )


def show_description(table: "LakeTable") -> None:
    document = summary_document(table)
    partitioned = f", partitioned by {document['partition_by']}" if document["partition_by"] else ""
    print(f"{document['table']}: {document['format']}, version {document['version']}{partitioned}")
    print(f"{document['rows']} rows in {document['files']} files, {size_text(document['bytes'])}\n")
    print_table(["COLUMN", "TYPE"], [(each.name, str(each.type)) for each in table.schema])
    ends = _topic_ends(table)
    if ends:
        print()
        print_table(["TOPIC", "PARTITION", "TAIL BEGINS AT"], [(topic, number, end) for (topic, number), end in ends])


def show_history(versions: Sequence["TableVersion"]) -> None:
    print_table(
        ["VERSION", "TIME", "OPERATION", "DETAILS"],
        [
            (
                each.version,
                each.time.astimezone().isoformat(sep=" ", timespec="seconds"),
                each.operation,
                ", ".join(f"{name} {value}" for name, value in each.details.items()),
            )
            for each in versions
        ],
    )


def show_rewritten(result: "Rewritten", *, vacuum: bool) -> None:
    print(
        f"files: {result.files_before} -> {result.files_after},"
        f" {size_text(result.bytes_before)} -> {size_text(result.bytes_after)}"
    )
    if vacuum:
        print(f"deleted {result.deleted} files that nobody needs")


def size_text(size: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"


def _topic_ends(table: "LakeTable") -> list[tuple[tuple[str, int], int]]:
    from millstream.lake.ordered_rows import has_positions
    from millstream.lake.seam import positions_of

    return sorted(positions_of(table).items()) if has_positions(table) else []
