"""The user's functions and classes, made ready to travel to workers.

Modules beside the pipeline's file exist nowhere but there. Their functions are therefore sent to workers by value: that
works embedded, on a cluster and over Spark Connect alike, without shipping files.
"""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from millstream.pipeline.functions import resolve


def load(reference: str, directory: Path) -> Any:
    """The function or class `module:name`; FunctionError says why not."""
    _forget_namesake(reference.partition(":")[0], directory)
    found = resolve(reference, directory)
    _send_by_value(directory)
    return found


def _forget_namesake(name: str, directory: Path) -> None:
    """A module of that name from beside another pipeline's file, in the same process."""
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
