"""The compiled modules: their list, and the choice between them and the same modules in plain Python.

`setup.py` compiles the modules of `MODULES` with mypyc into one library. Source and library lie side by side, and both
do the same. `choose` decides once, when `millstream` is imported, which of them is loaded, for all modules together:
compiled modules know the memory layout of each other's classes. The environment variable MILLSTREAM_COMPILED says:

- `auto` (default): the compiled modules if they were built from the sources as they are now, else plain Python
- `require`: the compiled modules, or an ImportError that says why not
- `refuse`: plain Python only, and none of the five Cython modules (`columnar`, `records`, `schemas`, the cleaner)

`setup.py` reads the same variable: `auto` builds where there is a C compiler. A library that is older than its sources
is never loaded; `why_plain` says so, and `millstream version` and the broker's log print it. `setup.py` imports this
file alone, so it imports nothing of Millstream.
"""

import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, SourceFileLoader
from pathlib import Path

VARIABLE = "MILLSTREAM_COMPILED"
AUTO, REQUIRE, REFUSE = "auto", "require", "refuse"

MODULES = (
    "millstream.common.prometheus",
    "millstream.formats.protocol.fetch",
    "millstream.formats.protocol.offset_commit",
    "millstream.formats.protocol.primitives",
    "millstream.formats.protocol.produce",
    "millstream.formats.protocol.replica_fetch",
    "millstream.formats.protocol.schema",
    "millstream.formats.protocol.steps",
    "millstream.formats.records.batch",
    "millstream.formats.records.record",
    "millstream.formats.records.varint",
    "millstream.node.coordination.core.state_machine",
    "millstream.node.coordination.runtime",
    "millstream.node.data.batch_opening",
    "millstream.node.data.fetch",
    "millstream.node.data.fetch_reading",
    "millstream.node.data.fetch_sessions",
    "millstream.node.data.produce",
    "millstream.node.groups.coordinator",
    "millstream.node.groups.core.offsets",
    "millstream.node.groups.core.records",
    "millstream.node.groups.core.shard",
    "millstream.node.groups.handlers",
    "millstream.node.replicas.acknowledgement",
    "millstream.node.replicas.core.follower",
    "millstream.node.replicas.core.leader",
    "millstream.node.replicas.fetcher",
    "millstream.node.replicas.local_partition",
    "millstream.node.replicas.partition",
    "millstream.node.replicas.partition_table",
    "millstream.node.replicas.retry_order",
    "millstream.node.server.connection",
    "millstream.node.server.dispatch",
    "millstream.node.server.fair_turns",
    "millstream.node.server.limits",
    "millstream.node.server.long_requests",
    "millstream.node.server.request",
    "millstream.node.server.service",
    "millstream.node.server.throttling",
    "millstream.node.storage.index.offset_index",
    "millstream.node.storage.index.time_index",
    "millstream.node.storage.index.transaction_index",
    "millstream.node.storage.log.appended",
    "millstream.node.storage.log.batch_admission",
    "millstream.node.storage.log.batch_scan",
    "millstream.node.storage.log.flushing",
    "millstream.node.storage.log.leader_epochs",
    "millstream.node.storage.log.log_reader",
    "millstream.node.storage.log.partition_log",
    "millstream.node.storage.log.producer_state",
    "millstream.node.storage.log.segment",
    "millstream.node.storage.log.segment_list",
    "millstream.node.tier.cache",
    "millstream.node.transactions.coordinator",
    "millstream.node.transactions.produce",
)
"""All of them are compiled, or none. `tools/check_compiled.py` checks what is known to differ when it is compiled."""

LIBRARY = "millstream_compiled"
"""mypyc's name of the group. The library is `millstream_compiled__mypyc.*.so`, beside the package."""

DEPENDENCIES = ("common", "config", "formats", "node")
"""The packages that compiled modules import. Compiled code relies on the types in all of them, so a change of any file
in them makes the build stale."""


_NOT_BUILT = "not built: "


class BuildRecord:
    """The record of the sources of a build, in a file beside the library; or the reason why there is no build.

    The first line says what built it; then each source has a line with its digest, size, time of change and path. The
    record of a wheel names no sources: those are not edited in `site-packages`. After a build that was not possible,
    the only line is the reason.
    """

    def __init__(self, package: Path) -> None:
        self._package = package
        self._name = f"_compiled{EXTENSION_SUFFIXES[0].removesuffix('.so')}.sources"
        self._path = package / self._name
        self._noted = ""

    def is_built(self) -> bool:
        return self._path.exists() and not self._text().startswith(_NOT_BUILT)

    def why_not_built(self) -> str:
        return self._text().removeprefix(_NOT_BUILT).strip() if self._path.exists() else ""

    def note(self, toolchain: str) -> None:
        """Takes down the sources as they are now, before a build."""
        lines = [toolchain]
        for path in self._sources():
            status = path.stat()
            name = path.relative_to(self._package).as_posix()
            lines.append(f"{_digest(path)} {status.st_size} {status.st_mtime_ns} {name}")
        self._noted = "\n".join(lines) + "\n"

    def note_failure(self, reason: str) -> None:
        """Takes down why there is no build, in place of the sources."""
        self._noted = f"{_NOT_BUILT}{' '.join(reason.split())}\n"

    def is_noted(self) -> bool:
        return bool(self._noted)

    def write(self) -> None:
        """Writes what was noted, after a build in the source tree. After a failed one, no library is loaded."""
        self._path.write_text(self._noted)

    def write_for_wheel(self, package: Path) -> None:
        (package / self._name).write_text(self._noted.partition("\n")[0] + "\n")

    def is_current(self, toolchain: str | None = None) -> bool:
        """Whether the library was built from the sources as they are now, and by this toolchain if one is given."""
        if not self.is_built() or self.changed() is not None:
            return False
        built_by = self._text().partition("\n")[0]
        if toolchain not in (None, built_by):
            return False
        # The times may be new although the contents are the same.
        self.note(built_by)
        self.write()
        return True

    def changed(self) -> str | None:
        """The first source that is not as it was when the library was built; None if all are."""
        for line in self._text().splitlines()[1:]:
            digest, size, changed_ns, name = line.split(" ", 3)
            path = os.path.join(self._package, name)
            try:
                status = os.stat(path)
                # A checkout touches files without a change of their content.
                if status.st_mtime_ns == int(changed_ns) and status.st_size == int(size):
                    continue
                if _digest(Path(path)) != digest:
                    return name
            except OSError:
                return name
        return None

    def _text(self) -> str:
        return self._path.read_text()

    def _sources(self) -> list[Path]:
        found = [self._package / "compilation.py"]
        for package in DEPENDENCIES:
            for ending in ("*.py", "*.pyi"):
                found += (self._package / package).rglob(ending)
        return sorted(found)


def _digest(path: Path) -> str:
    from hashlib import blake2b  # seldom needed: only where a time has changed

    return blake2b(path.read_bytes(), digest_size=16).hexdigest()


class _PlainFinder:
    """Finds the sources of compiled modules, where Python's own finder would prefer the library."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        if fullname not in _MODULE_SET:
            return None
        source = str(source_of(fullname, _PACKAGE))
        spec = ModuleSpec(fullname, SourceFileLoader(fullname, source), origin=source)
        spec.has_location = True
        return spec


_MODULE_SET = frozenset(MODULES)
_PACKAGE = Path(__file__).parent
_why_plain: str | None = "not chosen yet"
"""Why plain Python runs; None if the compiled modules do."""


def source_of(module: str, package: Path) -> Path:
    """The source file of a module; `package` is the directory of `millstream`."""
    return package.joinpath(*module.split(".")[1:]).with_suffix(".py")


def wanted() -> str:
    """The value of MILLSTREAM_COMPILED."""
    value = os.environ.get(VARIABLE) or AUTO
    if value not in (AUTO, REQUIRE, REFUSE):
        raise ImportError(f"{VARIABLE}={value!r} is not known: set it to {AUTO}, {REQUIRE} or {REFUSE}, or unset it.")
    return value


def choose() -> None:
    """Selects the form of all compiled modules. Called before the first of them is imported."""
    global _why_plain
    value = wanted()
    _why_plain = f"{VARIABLE}={REFUSE}" if value == REFUSE else _why_not_loadable()
    if _why_plain is None:
        return
    if value == REQUIRE:
        raise ImportError(f"{VARIABLE}={REQUIRE}, but {_why_plain}, or unset {VARIABLE}.")
    sys.meta_path.insert(0, _PlainFinder())


def _why_not_loadable() -> str | None:
    """What is wrong with the library, and what to do; None if it can be loaded."""
    record = BuildRecord(_PACKAGE)
    if not record.is_built():
        reason = record.why_not_built()
        why = f" ({reason})" if reason else ""
        return (
            f"the compiled modules were not built for this Python{why}:"
            " install Millstream where there is a C compiler, in a source tree `make compile`"
        )
    changed = record.changed()
    if changed is not None:
        return f"{changed} changed after the modules were compiled: run `make compile`"
    return None


def is_compiled() -> bool:
    """Whether the compiled modules run."""
    return _why_plain is None


def why_plain() -> str | None:
    """Why plain Python runs, and what to do about it; None if the compiled modules run."""
    return _why_plain


def description() -> str:
    """Which form runs, in a few words."""
    return "compiled" if is_compiled() else "plain Python"
