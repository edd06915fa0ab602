"""Python functions and classes that a pipeline names (`module:name`): imported, checked, and sent to workers.

Modules beside the pipeline's file are found first. A check removes the modules that it imported from there, because
another pipeline may have a module of the same name. Workers do not have these modules, so their functions are pickled
by value: that works embedded, on a cluster and over Spark Connect, without shipping files.
"""

import importlib
import inspect
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from millstream.pipeline.model import Python, Stateful, Step
from millstream.pipeline.parts import ParsedPart
from millstream.pipeline.problems import Position, Problems, nearest

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class FunctionError(Exception):
    """A function or class cannot be imported; the text says why."""


def resolve(reference: str, directory: Path) -> Any:
    """The function or class `module:name`. Raises FunctionError. The module stays imported."""
    module_name, _, attribute = reference.partition(":")
    with _first_on_path(directory):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            raise FunctionError(_not_found(module_name, error, directory)) from error
        except Exception as error:  # whatever a user's module does while it is imported
            raise FunctionError(f"importing {module_name} failed{_where(error)}: {error!r}") from error
    if not hasattr(module, attribute):
        names = [name for name in vars(module) if not name.startswith("_")]
        raise FunctionError(f"{module_name} has no {attribute!r}; {nearest(attribute, names, noun='it has')}")
    return getattr(module, attribute)


def _not_found(module_name: str, error: ModuleNotFoundError, directory: Path) -> str:
    if error.name and error.name.split(".")[0] != module_name.split(".")[0]:
        return f"importing {module_name} failed{_where(error)}: there is no module {error.name!r}; install it"
    beside = sorted(path.stem for path in directory.glob("*.py"))
    return (
        f"there is no module {module_name!r} beside the file ({directory}) or installed; "
        f"{nearest(module_name, beside, noun='beside it are')}"
    )


def _where(error: Exception) -> str:
    """The line of the user's code at which an import failed."""
    if isinstance(error, SyntaxError):
        return f" at {Path(error.filename or '').name}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    return f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if len(frames) > 1 else ""


@contextmanager
def _first_on_path(directory: Path) -> Iterator[None]:
    sys.path.insert(0, str(directory))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(directory))


@contextmanager
def _forgetting(directory: Path) -> Iterator[None]:
    before = set(sys.modules)
    try:
        yield
    finally:
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).is_relative_to(directory):
                del sys.modules[name]


def check_functions(steps: list[ParsedPart[Step]], directory: Path, problems: Problems) -> None:
    """Imports the functions of the steps, and checks that they can be called with the given arguments."""
    with _forgetting(directory):
        for drafted in steps:
            step = drafted.part
            if isinstance(step, Python):
                _check(step.function, directory, drafted.position_for("function"), problems, step)
            elif isinstance(step, Stateful):
                _check(step.processor, directory, drafted.position_for("processor"), problems, step)


def _check(reference: str, directory: Path, position: Position, problems: Problems, step: Python | Stateful) -> None:
    if ":" not in reference:
        return
    try:
        found = resolve(reference, directory)
    except FunctionError as error:
        missing = error.__cause__
        if isinstance(missing, ModuleNotFoundError) and missing.name and missing.name.split(".")[0] == "pyspark":
            problems.warning(
                position, f"{reference} could not be checked, because it needs pyspark: pip install 'millstream[spark]'"
            )
        else:
            problems.error(position, str(error))
        return
    message = _misfit_function(found, step) if isinstance(step, Python) else _misfit_processor(found, step)
    if message:
        problems.error(position, f"{reference} {message}")


def _misfit_function(found: Any, step: Python) -> str | None:
    if not callable(found):
        return f"is not a function, but {type(found).__name__}"
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*([None] * len(step.reads)), **step.arguments)
    except TypeError as error:
        takes = sum(1 for parameter in signature.parameters.values() if parameter.kind in _POSITIONAL)
        given = f"{len(step.reads)} DataFrame{'s' if len(step.reads) != 1 else ''}"
        named = f" and {', '.join(step.arguments)}" if step.arguments else ""
        return f"takes {signature} ({takes} by position), but is given {given}{named}: {error}"
    return None


def _misfit_processor(found: Any, step: Stateful) -> str | None:
    if not isinstance(found, type):
        return f"is not a class, but {type(found).__name__}"
    if not any(base.__name__ == "StatefulProcessor" for base in found.__mro__[1:]):
        return "is not a pyspark.sql.streaming.StatefulProcessor"
    try:
        inspect.signature(found).bind(**step.arguments)
    except TypeError as error:
        return f"cannot be created with the arguments {', '.join(step.arguments) or '(none)'}: {error}"
    except ValueError:
        return None
    abstract = sorted(getattr(found, "__abstractmethods__", ()))
    return f"does not have {', '.join(abstract)}" if abstract else None


def load(reference: str, directory: Path) -> Any:
    """The function or class `module:name`; FunctionError says why not."""
    _forget_namesake(reference.partition(":")[0], directory)
    found = resolve(reference, directory)
    _send_by_value(directory)
    return found


def _forget_namesake(name: str, directory: Path) -> None:
    """Removes a module of the same name that belongs to another pipeline in this process."""
    module = sys.modules.get(name)
    if module is not None and (directory / f"{name}.py").exists() and not _is_in(module, directory):
        del sys.modules[name]


def _send_by_value(directory: Path) -> None:
    from pyspark.cloudpickle import register_pickle_by_value
    from pyspark.cloudpickle.cloudpickle import list_registry_pickle_by_value

    known = list_registry_pickle_by_value()  # type: ignore[no-untyped-call]
    for name, module in list(sys.modules.items()):
        if name != "__main__" and name not in known and _is_in(module, directory):
            register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _is_in(module: ModuleType, directory: Path) -> bool:
    file = getattr(module, "__file__", None)
    return bool(file) and Path(str(file)).resolve().parent == directory.resolve()
