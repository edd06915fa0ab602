"""`millstream pipeline`: create, validate, draw and run pipelines. `status`, `stop` and `skew` are in their modules."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli import exit_codes
from millstream.cli.options import ClientSettings, Json, assignments
from millstream.cli.pipeline import skew as pipeline_skew
from millstream.cli.pipeline import status as pipeline_status
from millstream.cli.pipeline import test as pipeline_test
from millstream.cli.pipeline.common import PipelineFile, check_deep, connected, inspected, loaded, needs
from millstream.cli.terminal import CommandFailedError, complain, print_json, print_table

if TYPE_CHECKING:
    from millstream.pipeline.definition import Inspected


def run(
    file: PipelineFile,
    master: Annotated[
        str | None,
        typer.Option(
            "--master",
            metavar="URL",
            help="Spark master: spark://HOST:7077, yarn, k8s://…, local[4]. [default: local[*]]",
        ),
    ] = None,
    remote: Annotated[
        str | None,
        typer.Option("--remote", metavar="URL", help="Spark Connect server: sc://HOST:15002. Excludes --master."),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Process the available records, then stop; overrides `trigger`.")
    ] = False,
    checkpoint_dir: Annotated[
        str | None,
        typer.Option(
            "--checkpoint-dir", metavar="DIR", help="Checkpoint directory, a path or a URI; overrides the file."
        ),
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="NAME=VALUE", help="Spark setting; overrides the file. Repeatable."),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            metavar="PORT",
            min=0,
            max=65535,
            help="Port for Prometheus metrics; 0 selects a free port.",
        ),
    ] = None,
    json: Json = False,
    client_settings: ClientSettings = None,
) -> None:
    """Run a pipeline until Ctrl-C or `millstream pipeline stop`; with --once until all available records are read.

    A terminal shows rows in and out, lag, batch duration, state and watermark. With --json each batch is a JSON line
    on stdout. The first Ctrl-C stops after the batch, the second at once. The next run continues from the checkpoint
    of each sink.

    \b
    Examples:
      millstream pipeline run pipeline.yaml
      millstream pipeline run pipeline.yaml --once --json
      millstream pipeline run pipeline.yaml --master spark://spark-1:7077 --checkpoint-dir s3://lake/checkpoints
      millstream pipeline run pipeline.yaml --remote sc://spark-1:15002 --metrics-port 9308
    """
    if master is not None and remote is not None:
        raise CommandFailedError("--master and --remote exclude each other", exit_codes.USAGE)
    pipeline = connected(loaded(file), client_settings)
    with needs():
        import pyspark  # noqa: F401  # a missing package is reported before anything is started

        from millstream.pipeline.engine.failures import PartFailedError, PipelineFailedError
        from millstream.pipeline.engine.run import RunOptions, run_pipeline
        from millstream.pipeline.state import AlreadyRunningError, StateError
    options = RunOptions(
        master=master,
        remote=remote,
        checkpoint_dir=checkpoint_dir,
        once=once,
        json=json,
        metrics_port=metrics_port,
        settings=assignments(conf, "--conf"),
    )
    try:
        run_pipeline(pipeline, options)
    except AlreadyRunningError as error:
        raise CommandFailedError(str(error), exit_codes.EXISTS) from error
    except StateError as error:
        raise CommandFailedError(str(error)) from error
    except PartFailedError as error:
        raise CommandFailedError(f"{pipeline.file}:{error.line}: {error}", error.exit_code) from error
    except PipelineFailedError as error:
        raise CommandFailedError(str(error), error.exit_code) from error


app = typer.Typer(
    help="Create, check, draw, run, watch and stop pipelines on Spark.\n\n"
    "A pipeline is a YAML file with sources (topics), steps (SQL, Python, windows, joins, …) and sinks (topics, "
    "tables). docs/pipelines.md describes it.",
    no_args_is_help=True,
)


@app.command()
def init(
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="Directory of the project. [default: the name of the example]"),
    ] = None,
    example: Annotated[
        str | None,
        typer.Option("--example", "-e", metavar="NAME", help="Example to copy. [default: orders-revenue]"),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", "-l", help="List the examples.")] = False,
    json: Json = False,
) -> None:
    """Create a small working project: pipeline.yaml, generate.py (test data), README.md.

    \b
    Examples:
      millstream pipeline init                          # into ./orders-revenue
      millstream pipeline init shop --example click-sessions
      millstream pipeline init --list
    """
    from millstream.pipeline.problems import nearest
    from millstream.pipeline.project import DEFAULT_EXAMPLE, ProjectExistsError, examples, write_project

    known = examples()
    if list_:
        if json:
            print_json([{"name": each.name, "summary": each.summary} for each in known])
        else:
            print_table(("example", "shows"), [(each.name, each.summary) for each in known])
        return
    chosen = example or DEFAULT_EXAMPLE
    names = [each.name for each in known]
    if chosen not in names:
        advice = nearest(chosen, names, noun="there are")
        raise CommandFailedError(f"there is no example {chosen!r}; {advice}", exit_codes.NOT_FOUND)
    target = Path(chosen) if directory is None else directory
    try:
        written = write_project(target, chosen)
    except ProjectExistsError as error:
        raise CommandFailedError(str(error), exit_codes.EXISTS) from error
    if json:
        print_json({"directory": str(target), "files": [str(path) for path in written]})
        return
    print(f"{target}: {', '.join(path.name for path in written)}")
    print("Next, with a broker at localhost:9092 (`millstream serve`):")
    print(f"  python {target / 'generate.py'}")
    print(f"  millstream pipeline validate {target / 'pipeline.yaml'}")
    print(f"  millstream pipeline run {target / 'pipeline.yaml'}")


@app.command()
def validate(
    file: PipelineFile,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Check with the broker (topics), the registry (schemas) and Spark (SQL) too."),
    ] = False,
    json: Json = False,
    client_settings: ClientSettings = None,
) -> None:
    """List all errors and warnings of a pipeline, with their lines. Nothing is started.

    Checks names, durations, types, SQL brackets and watermarks, and imports Python functions. The exit code is 1 if
    there are errors, 0 if there are only warnings. --deep starts a Spark session, but no query.

    \b
    Examples:
      millstream pipeline validate pipeline.yaml
      millstream pipeline validate --deep pipeline.yaml
      millstream pipeline validate --json pipeline.yaml | jq '.problems[].message'
    """
    found = inspected(file)
    if deep and found.pipeline is not None:
        check_deep(connected(found.pipeline, client_settings), found.problems)
    if json:
        print_json(_as_document(found))
    else:
        _show(found)
    if found.problems.has_errors:
        raise typer.Exit(exit_codes.FAILED)


def _as_document(found: "Inspected") -> dict[str, object]:
    return {
        "file": found.file,
        "pipeline": found.pipeline.name if found.pipeline else None,
        "valid": not found.problems.has_errors,
        "problems": [
            {
                "line": problem.position.line,
                "column": problem.position.column,
                "severity": str(problem.severity),
                "message": problem.message,
            }
            for problem in found.problems
        ],
    }


def _show(found: "Inspected") -> None:
    lines = found.text.splitlines()
    for problem in found.problems:
        print(problem.text(found.file))
        if 0 < problem.position.line <= len(lines):
            source = lines[problem.position.line - 1]
            print(f"    {source}")
            column = max(problem.position.column - 1, len(source) - len(source.lstrip()))
            print("    " + " " * min(column, len(source)) + "^")
    pipeline = found.pipeline
    if pipeline is None or found.problems.has_errors:
        errors = sum(1 for problem in found.problems if problem.severity == "error")
        complain(f"{found.file}: {errors} error{'s' if errors != 1 else ''}")
    else:
        counts = (("source", pipeline.sources), ("step", pipeline.steps), ("sink", pipeline.sinks))
        parts = ", ".join(f"{len(all_)} {name}{'s' if len(all_) != 1 else ''}" for name, all_ in counts)
        print(f"{found.file}: pipeline {pipeline.name!r} is valid ({parts})")


class GraphFormat(StrEnum):
    SVG = "svg"
    TEXT = "text"
    MERMAID = "mermaid"


_SUFFIXES = {GraphFormat.SVG: (".svg",), GraphFormat.MERMAID: (".mmd", ".mermaid", ".md"), GraphFormat.TEXT: (".txt",)}


@app.command()
def graph(
    file: PipelineFile,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="File to write: .svg, .mmd or .txt. [default: stdout]"),
    ] = None,
    format: Annotated[
        GraphFormat | None,
        typer.Option("--format", "-f", help="svg, mermaid (for Markdown), or text. [default: by FILE, else svg]"),
    ] = None,
    ascii_: Annotated[bool, typer.Option("--ascii", help="The same as --format text.")] = False,
) -> None:
    """Draw the graph of a pipeline: sources on the left, sinks on the right.

    \b
    Examples:
      millstream pipeline graph pipeline.yaml -o flow.svg
      millstream pipeline graph pipeline.yaml --format mermaid
      millstream pipeline graph pipeline.yaml --ascii | less -S
    """
    chosen = _graph_format(output, format, ascii_)
    pipeline = loaded(file)
    from millstream.pipeline.drawing.graph import graph_of, to_mermaid
    from millstream.pipeline.drawing.svg import to_svg
    from millstream.pipeline.drawing.text import to_text

    draw = {GraphFormat.SVG: to_svg, GraphFormat.TEXT: to_text, GraphFormat.MERMAID: to_mermaid}[chosen]
    picture = draw(graph_of(pipeline))
    if output is None:
        print(picture, end="")
    else:
        output.write_text(picture, encoding="utf-8")
        print(output)


def _graph_format(output: Path | None, format: GraphFormat | None, ascii_: bool) -> GraphFormat:
    if ascii_ and format not in (None, GraphFormat.TEXT):
        raise CommandFailedError(f"--ascii and --format {format} exclude each other", exit_codes.USAGE)
    suffix = output.suffix if output is not None else None
    if ascii_:
        format = GraphFormat.TEXT
        if output is not None and suffix == ".svg":
            raise CommandFailedError(
                f"--ascii does not write SVG: use {output.with_suffix('.txt')}, or remove --ascii", exit_codes.USAGE
            )
    if format is not None:
        if suffix is not None and any(suffix in others for key, others in _SUFFIXES.items() if key is not format):
            raise CommandFailedError(
                f"{output}: --format {format} needs a name that ends in {_SUFFIXES[format][0]}", exit_codes.USAGE
            )
        return format
    found = next((key for key, suffixes in _SUFFIXES.items() if suffix in suffixes), None)
    if found is None and output is not None:
        raise CommandFailedError(
            f"{output}: the output is SVG; use a name that ends in .svg (or .mmd, .txt)", exit_codes.USAGE
        )
    return found or GraphFormat.SVG


app.command("run")(run)
app.command("test")(pipeline_test.test)
app.command("status")(pipeline_status.status)
app.command("stop")(pipeline_status.stop)
app.command("skew")(pipeline_skew.skew)
