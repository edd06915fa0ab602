"""`millstream pipeline test`: runs the tests of a pipeline on sample rows, without a broker."""

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli import exit_codes
from millstream.cli.options import Json
from millstream.cli.pipeline.common import PipelineFile, inspected, needs, resolved, short_session
from millstream.cli.terminal import CommandFailedError, complain, note, print_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millstream.pipeline.engine.trial import CaseResult

_POLL_SECONDS = 0.3


def test(
    file: PipelineFile,
    tests: Annotated[
        Path | None,
        typer.Option(
            "--tests",
            metavar="FILE",
            help="File with the tests. [default: NAME.test.yaml in the directory of the file]",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", "-k", metavar="TEXT", help="Tests with this in their name. Repeatable."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Run again when a file changes, in the same Spark session.")
    ] = False,
    json: Json = False,
) -> None:
    """Test a pipeline: sample rows for its sources, and the rows that its sinks must get. No broker is needed.

    The exit code is 0 if all tests pass, 1 if one fails or a file is not valid, 4 if there is no file with tests, or
    no test that -k names.

    \\b
    Examples:
      millstream pipeline test shop
      millstream pipeline test shop/pipeline.yaml --watch
      millstream pipeline test shop -k refunds --json
    """
    path = resolved(file)
    with needs():
        import pyspark  # noqa: F401  # a missing package is reported first

        from millstream.pipeline.cases import tests_beside
        from millstream.pipeline.engine.trial import TEST_SETTINGS
    cases = tests or tests_beside(path)
    if not cases.is_file():
        raise CommandFailedError(
            f"there is no file {cases}; write one (docs/pipelines.md, Tests), or name another with --tests",
            exit_codes.NOT_FOUND,
        )
    run = _Run(path, cases, tuple(only or ()), json)
    if not watch:
        run.check_files()
    with short_session(f"test {path.stem}", "local[2]", TEST_SETTINGS) as session:
        passed = run.once(session)
        while watch:
            note("waiting for a change; Ctrl-C ends")
            run.wait_for_change()
            run.once(session)
    if not passed:
        raise typer.Exit(exit_codes.FAILED)


@dataclass
class _Run:
    path: Path
    cases: Path
    only: tuple[str, ...]
    json: bool
    _seen: dict[Path, int] = field(default_factory=dict)
    """The times of the files when they were last read: a change during a run is a change too."""

    def check_files(self) -> None:
        """Mistakes in the files end the command before Spark starts."""
        _pipeline_and_cases(self.path, self.cases, self.only)

    def once(self, session: "SparkSession") -> bool:
        from millstream.pipeline.engine.trial import run_case

        self._seen = self._files()
        _forget_modules(self.path.parent)
        try:
            pipeline, cases = _pipeline_and_cases(self.path, self.cases, self.only)
        except CommandFailedError as error:  # while the file is being edited
            complain(str(error))
            return False
        began = time.monotonic()
        results = []
        for case in cases:
            result = run_case(session, pipeline, case)
            results.append(result)
            if not self.json:
                _show(result, self.path, self.cases)
        failed = sum(1 for result in results if not result.has_passed)
        if self.json:
            print_json([_document(result) for result in results])
        else:
            seconds = time.monotonic() - began
            print(f"{len(results) - failed} passed, {failed} failed in {seconds:.1f} s")
        return failed == 0

    def wait_for_change(self) -> None:
        """Waits until the pipeline, its tests or a Python file beside it is not as the last run read it."""
        while not self.has_changed():
            time.sleep(_POLL_SECONDS)

    def has_changed(self) -> bool:
        return self._files() != self._seen

    def _files(self) -> dict[Path, int]:
        watched = [self.path, self.cases, *self.path.parent.glob("*.py")]
        return {each: each.stat().st_mtime_ns for each in watched if each.exists()}


def _pipeline_and_cases(path: Path, file: Path, only: tuple[str, ...]) -> tuple[Any, list[Any]]:
    from millstream.pipeline.cases import load_cases
    from millstream.pipeline.problems import InvalidPipelineError

    found = inspected(path)
    if found.pipeline is None:
        errors = [problem.text(found.file) for problem in found.problems if problem.severity == "error"]
        raise CommandFailedError("the pipeline is not valid:\n" + "\n".join(errors))
    try:
        cases = load_cases(file, found.pipeline)
    except InvalidPipelineError as error:
        raise CommandFailedError(f"the tests are not valid:\n{error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailedError(f"{file} cannot be read: {error}") from error
    chosen = [case for case in cases if not only or any(text in case.name for text in only)]
    if not chosen:
        names = ", ".join(case.name for case in cases) or "none"
        raise CommandFailedError(f"no test matches {' or '.join(only)}; there are: {names}", exit_codes.NOT_FOUND)
    return found.pipeline, chosen


def _forget_modules(directory: Path) -> None:
    """Modules beside the file are imported again, because they may have changed."""
    for name, module in list(sys.modules.items()):
        origin = getattr(module, "__file__", None)
        if origin and name != "__main__" and Path(str(origin)).resolve().parent == directory.resolve():
            del sys.modules[name]


def _show(result: "CaseResult", pipeline: Path, cases: Path) -> None:
    print(f"{'ok    ' if result.has_passed else 'FAILED'}  {result.case.name}")
    for line, reason in result.failures:
        print(f"    {pipeline}:{line}: {reason}")
    for name, diff in result.diffs.items():
        if not diff.is_equal:
            print(f"    {cases}:{result.case.lines[name]}: {name} differs (- missing, + not expected, ~ other values)")
            for text in diff.lines():
                print(f"      {text}")
    if result.skipped and result.failures:
        print(f"    not run because of that: {', '.join(dict.fromkeys(result.skipped))}")


def _document(result: "CaseResult") -> dict[str, object]:
    return {
        "test": result.case.name,
        "passed": result.has_passed,
        "failures": [{"line": line, "message": reason} for line, reason in result.failures],
        "differences": {name: diff.lines() for name, diff in result.diffs.items() if not diff.is_equal},
        "not_run": result.skipped,
    }
