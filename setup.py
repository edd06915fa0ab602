"""Compiles the modules of `src/millstream/compilation.py` with mypyc; `pyproject.toml` has everything else.

The result is one library, with a small extension module beside each source that loads its part of it. The variable
MILLSTREAM_COMPILED decides: with `auto` (default) the modules stay plain Python where there is no C compiler or the
build fails, and a line says so; with `require` that is an error; with `refuse` nothing is compiled. The C files stay in
`build/`: a second build compiles only what changed, and nothing at all if no source did.

The types of other packages are not looked at. So the C files are the same in the environment of a developer and in the
nearly empty one of `pip install`. `make check` checks all types.

The Cython modules are built where there is a compiler; with `require` they must be, with `refuse` none is.
"""

import importlib.util
import os
import shutil
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()
PACKAGE = ROOT / "src" / "millstream"
OPTIMISATION = os.environ.get("MILLSTREAM_OPTIMISATION", "2")
"""The level of the C compiler. 3 takes longer and gives nothing; 0 builds four times faster, to work on the modules."""
BUILD = ROOT / "build" / f"mypyc-{OPTIMISATION}"
BUILDING = {"bdist_wheel", "build", "build_ext", "editable_wheel", "install"}
"""Commands that need the C files. Others, such as those that make metadata, must not wait for mypyc."""
IN_PLACE = "--inplace" in sys.argv or "editable_wheel" in sys.argv
"""Whether the library goes into the source tree."""
PROCESSORS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _compilation() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compilation", PACKAGE / "compilation.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


compilation = _compilation()
record = compilation.BuildRecord(PACKAGE)


class CannotCompile(Exception):
    """The reason why the modules are not compiled."""


def _give_up(reason: CannotCompile) -> None:
    """Leaves plain Python, and says so; an error if the compiled modules are required."""
    record.note_failure(str(reason))
    if IN_PLACE:
        record.write()
    if compilation.wanted() == compilation.REQUIRE:
        sys.exit(f"{compilation.VARIABLE}={compilation.REQUIRE}, but the modules cannot be compiled: {reason}.")
    print(f"millstream: the modules are not compiled, plain Python will run: {reason}.", file=sys.stderr)


def _toolchain() -> str:
    """What makes the library, apart from the sources of the modules."""
    if shutil.which((os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]) is None:
        raise CannotCompile("there is no C compiler (install gcc or clang, or set CC)")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        raise CannotCompile("the headers of Python are missing (install python3-dev)")
    try:
        from mypy.version import __version__ as version
    except ImportError:
        raise CannotCompile("mypyc is not installed (pip install mypy)") from None
    return f"mypyc {version} -O{OPTIMISATION}"


TYPES = (
    *("--config-file", "pyproject.toml", "--cache-dir", str(BUILD.relative_to(ROOT) / "types")),
    *("--no-site-packages", "--ignore-missing-imports", "--no-warn-return-any", "--no-warn-unused-ignores"),
    *("--allow-subclassing-any", "--allow-untyped-calls", "--allow-untyped-decorators"),
)
"""Options of mypy: other packages have no types here, and nothing is reported because of that."""


def _native_extensions() -> list[Extension]:
    """The library and one extension for each module, with their C files made by mypyc."""
    from mypyc.build import mypycify

    sources = [str(compilation.source_of(name, PACKAGE).relative_to(ROOT)) for name in compilation.MODULES]
    try:
        extensions = mypycify(
            [*TYPES, *sources],
            only_compile_paths=sources,
            group_name=compilation.LIBRARY,
            multi_file=True,
            target_dir=str(BUILD.relative_to(ROOT)),
            opt_level=OPTIMISATION,
            debug_level="0",
        )
    except SystemExit as end:
        raise CannotCompile(f"mypyc failed ({end.code}); its messages are above") from None
    for extension in extensions:
        extension.is_native = True
    return list(extensions)


def _extensions() -> list[Extension]:
    """What is to be built; empty if it is built already, cannot be built, or is refused."""
    if not BUILDING.intersection(sys.argv) or compilation.wanted() == compilation.REFUSE:
        return []
    try:
        try:
            toolchain = _toolchain()
        except CannotCompile:
            if IN_PLACE and record.is_current():
                return []  # built before, by tools that are not here now
            raise
        if IN_PLACE and record.is_current(toolchain):
            return []
        record.note(toolchain)
        return _native_extensions()
    except CannotCompile as reason:
        _give_up(reason)
        return []


class BuildExtensions(build_ext):
    """Builds the library with all processors, and keeps all of the compiled modules or none."""

    def run(self) -> None:
        if compilation.wanted() == compilation.REFUSE:
            return
        in_place = self.inplace
        super().run()
        if not record.is_noted():
            return  # the build is current, or refused
        if in_place:
            _remove_former()
            record.write()
        else:
            record.write_for_wheel(Path(self.build_lib) / "millstream")

    def build_extensions(self) -> None:
        native = [extension for extension in self.extensions if _is_native(extension)]
        others = [extension for extension in self.extensions if not _is_native(extension)]
        for extension in others:
            extension.optional = compilation.wanted() != compilation.REQUIRE
        try:
            self._build_native(native)
        except Exception as error:
            _give_up(CannotCompile(f"the C compiler failed: {error}"))
            native = []
        self.extensions = others
        super().build_extensions()
        self.extensions = native + others

    def _build_native(self, extensions: list[Extension]) -> None:
        one_by_one = self.compiler.compile
        self.compiler.compile = self._compile
        try:
            for extension in extensions[:1]:
                self.build_extension(extension)  # the library
            with ThreadPoolExecutor(PROCESSORS) as pool:
                list(pool.map(self.build_extension, extensions[1:]))
        finally:
            self.compiler.compile = one_by_one

    def _compile(
        self,
        sources: list[str],
        output_dir: str | None = None,
        macros: Any = None,
        include_dirs: Any = None,
        debug: Any = 0,
        extra_preargs: Any = None,
        extra_postargs: Any = None,
        depends: Any = None,
    ) -> list[str]:
        """As the compiler's own `compile`, but several files at once, and only those that changed."""
        compiler = self.compiler
        _, objects, extra_postargs, options, build = compiler._setup_compile(
            output_dir, macros, include_dirs, sources, depends, extra_postargs
        )
        arguments = compiler._get_cc_args(options, debug, extra_preargs)
        headers = max((path.stat().st_mtime for path in BUILD.rglob("*.h")), default=0.0)

        def compile_one(target: str) -> None:
            source, ending = build[target]
            path = Path(target)
            if path.exists() and path.stat().st_mtime > max(headers, Path(source).stat().st_mtime):
                return
            compiler._compile(target, source, ending, arguments, extra_postargs, options)

        # The largest file first: it takes as long as many small ones.
        with ThreadPoolExecutor(PROCESSORS) as pool:
            list(pool.map(compile_one, sorted(build, key=lambda target: -Path(build[target][0]).stat().st_size)))
        return list(objects)


class PlainOrNot(Distribution):
    """Without extensions if compiled modules are refused: the wheel then is for every machine."""

    def has_ext_modules(self) -> bool:
        return compilation.wanted() != compilation.REFUSE and bool(super().has_ext_modules())


def _remove_former() -> None:
    """Removes what loads modules that are not in the list any more: the library does not have them."""
    current = {compilation.source_of(name, PACKAGE) for name in compilation.MODULES}
    for library in PACKAGE.rglob("*.so"):
        source = library.with_name(library.name.partition(".")[0] + ".py")
        if source.exists() and source not in current:
            library.unlink()


def _is_native(extension: Extension) -> bool:
    return getattr(extension, "is_native", False)


setup(ext_modules=_extensions(), cmdclass={"build_ext": BuildExtensions}, distclass=PlainOrNot)
