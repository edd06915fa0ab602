"""`python -m benchmarks.spark.sizing`: how fast the source reads with so many partitions and cores, and at what work.

The numbers of docs/spark-cluster.md.
"""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.spark.stage import OURS, Stage, Took, stage
from millstream.formats.records.compression import Codec

ROWS = 2_400_000
ROUNDS = 5
CORES = (1, 2)


class Shape(NamedTuple):
    name: str
    partitions: int
    options: dict[str, str]


SHAPES = (
    Shape("1 partition", 1, {}),
    Shape("2", 2, {}),
    Shape("4", 4, {}),
    Shape("1, minPartitions=4", 1, {"minPartitions": "4"}),
)


def main() -> None:
    console = Console()
    table = Table(
        "", *(each.name for each in SHAPES), title="Million rows/s (slowest to fastest); processor s per million"
    )
    with Progress(console=console) as progress:
        task = progress.add_task("", total=len(CORES) * (ROUNDS + 1) * len(SHAPES))
        for cores in CORES:
            with stage(cores) as where:
                topics = {partitions: _topic(where, partitions) for partitions in {each.partitions for each in SHAPES}}
                took: dict[str, list[Took]] = {each.name: [] for each in SHAPES}
                for number in range(-1, ROUNDS):  # the first is not counted: code that was never run is slower
                    for shape in SHAPES:
                        progress.update(task, description=f"{cores} cores, {shape.name}")
                        found = _read(where, topics[shape.partitions], shape)
                        took[shape.name] += [found] if number >= 0 else []
                        progress.advance(task)
            table.add_row(f"{cores} cores", *(_cell(took[each.name]) for each in SHAPES))
    console.print(table)


def _topic(where: Stage, partitions: int) -> str:
    name = where.new_topic("sizing", partitions)
    where.fill(name, ROWS, 100, Codec.LZ4, partitions)
    return name


def _read(where: Stage, topic: str, shape: Shape) -> Took:
    frame = where.read(OURS, topic, **shape.options)
    with where.timed() as took:
        frame.write.format("noop").mode("overwrite").save()
    return took


def _cell(took: list[Took]) -> str:
    rates = sorted(ROWS / each.seconds / 1e6 for each in took)
    work = median(each.processor_s for each in took) / (ROWS / 1e6)
    return f"{median(rates):.2f} ({rates[0]:.2f}–{rates[-1]:.2f}); {work:.2f}"


if __name__ == "__main__":
    main()
