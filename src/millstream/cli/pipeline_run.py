"""`millstream pipeline run`: the options of a run, handed to the engine."""

from typing import Annotated

import typer

from millstream.cli import exit_codes
from millstream.cli.options import Json, assignments
from millstream.cli.pipeline_files import PipelineFile, loaded, needs
from millstream.cli.terminal import CommandFailedError


def run(
    file: PipelineFile,
    master: Annotated[
        str | None,
        typer.Option(
            "--master", metavar="URL", help="spark://HOST:7077, yarn, k8s://…, local[4]. [default: local[*], embedded]"
        ),
    ] = None,
    remote: Annotated[
        str | None, typer.Option("--remote", metavar="URL", help="Spark Connect: sc://HOST:15002. Instead of --master.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Take what is there now, in batches, then end; whatever `trigger` says.")
    ] = False,
    checkpoint_dir: Annotated[
        str | None,
        typer.Option(
            "--checkpoint-dir", metavar="DIR", help="Where progress is kept, over what the file says; a path or a URI."
        ),
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="NAME=VALUE", help="A Spark setting, over the file's. Repeatable."),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option("--metrics-port", metavar="PORT", min=0, max=65535, help="Serve Prometheus metrics; 0: any port."),
    ] = None,
    json: Json = False,
) -> None:
    """Run a pipeline until Ctrl-C, `millstream pipeline stop`, or (--once) until all is read.

    In a terminal a live view shows rows in and out, lag, batch duration, state and watermark; with --json each batch is
    a JSON line on stdout. The first Ctrl-C stops after the batch, the second at once. A run goes on where the last one
    ended: progress is kept for each sink.

    \b
    Examples:
      millstream pipeline run pipeline.yaml
      millstream pipeline run pipeline.yaml --once --json
      millstream pipeline run pipeline.yaml --master spark://spark-1:7077 --checkpoint-dir s3://lake/checkpoints
      millstream pipeline run pipeline.yaml --remote sc://spark-1:15002 --metrics-port 9308
    """
    if master is not None and remote is not None:
        raise CommandFailedError("--master and --remote are two ways to Spark; give one of them", exit_codes.USAGE)
    pipeline = loaded(file)
    with needs():
        import pyspark  # noqa: F401  # what is missing is best told before anything is started

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
