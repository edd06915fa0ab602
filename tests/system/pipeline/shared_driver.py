"""A driver to be killed: runs a pipeline, and stops at a chosen moment of a write until someone ends it.

`before:FORMAT:N`, `during:FORMAT:N` and `after:FORMAT:N` name the N-th write of a format in this process. It prints
`there` at that moment. `before` and `after` then wait for ever; `during` lets the write go on, and waits after it.
Without a moment it processes what is there, and ends.
"""

import os
import sys
import threading
from collections import Counter
from typing import Any

from pyspark.sql import SparkSession

from millstream.pipeline.definition import load
from millstream.pipeline.engine.fan_out import FanOut
from millstream.pipeline.engine.run import RunOptions, run_pipeline
from tests.system.spark.conftest import SETTINGS


def stop_at(moment: str) -> None:
    when, wanted, number = moment.split(":")
    save = FanOut._save
    begun: Counter[str] = Counter()

    def wait_there() -> None:
        print("there", flush=True)
        threading.Event().wait()

    def watched(self: FanOut, options: Any, format: str, *rest: Any) -> None:
        begun[format] += 1
        is_it = format == wanted and begun[format] == int(number)
        if is_it and when == "before":
            wait_there()
        if is_it and when == "during":
            print("there", flush=True)
        save(self, options, format, *rest)
        if is_it:
            wait_there()

    FanOut._save = watched  # type: ignore[method-assign, assignment]


def main(file: str, moment: str | None = None) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    if moment is not None:
        stop_at(moment)
    builder = SparkSession.builder.master("local[2]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    run_pipeline(load(file), RunOptions(once=True, archive_classes=False), session=spark)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
