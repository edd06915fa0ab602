"""A Spark session for commands that compute something and end: quiet, and clear about why it did not start."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.cli.terminal import CommandFailedError, note

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def short_session(name: str, master: str, settings: Mapping[str, str] | None = None) -> "Iterator[SparkSession]":
    """What Spark logs is kept from the terminal; if it does not start, its reason is told."""
    import tempfile

    from pyspark.logger import PySparkLogger

    from millstream.spark.session.java import JavaNotFoundError
    from millstream.spark.session.session import SparkStartError, start_session

    # PySpark also logs what it raises, with the JVM's stack: we tell it in a line.
    for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(logger).disabled = True
    note("starting Spark …")
    with tempfile.TemporaryDirectory(prefix="millstream-") as directory:
        log = Path(directory) / "spark.log"
        try:
            session = start_session(name, master=master, settings=settings, lifetime="short", log_file=log)
        except (JavaNotFoundError, SparkStartError) as error:
            raise CommandFailedError(str(error)) from error
        try:
            yield session
        finally:
            session.stop()
