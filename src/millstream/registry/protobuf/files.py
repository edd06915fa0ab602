"""Protobuf schemas to descriptors: .proto text by protoc in a process of its own, base64 as it is."""

import base64
import binascii
import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import DecodeError

from millstream.registry.formats import Dependency, InvalidSchemaError

MAIN_FILE = "default.proto"
"""What a schema is called that nobody imports; the name Confluent's clients use."""
_PROTOC_SECONDS = 60
_NO_ERROR = re.compile(r"[IW]\d{4} |WARNING: |.*: warning: ")


def load(text: str, dependencies: Sequence[Dependency]) -> FileDescriptor:
    """The schema in a descriptor pool of its own, with all that it imports."""
    files = dict(dependencies) | {MAIN_FILE: text}
    given = {name: _deserialized(name, content) for name, content in files.items()}
    main = given[MAIN_FILE]
    if main is None:
        # protoc wants the imports as text; those which are descriptors are given to it as such.
        compiled = _compile({name: content for name, content in files.items() if given[name] is None}, given)
    else:
        missing = [name for name, content in given.items() if content is None]
        compiled = _compile({name: files[name] for name in missing}, given, *missing) if missing else {}
    known = compiled | {name: content for name, content in given.items() if content is not None}
    return _link(known)


def _deserialized(name: str, text: str) -> descriptor_pb2.FileDescriptorProto | None:
    """A descriptor in base64, as Python's serializer registers it; None if the text is something else."""
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode("".join(text.split()), validate=True))
    except (binascii.Error, DecodeError, ValueError):
        return None
    if not (file.name or file.message_type or file.enum_type):
        return None
    file.name = name
    return file


def _link(files: Mapping[str, descriptor_pb2.FileDescriptorProto]) -> FileDescriptor:
    pool = descriptor_pool.DescriptorPool()
    done: set[str] = set()

    def add(name: str, needed_by: str) -> None:
        if name in done:
            return
        done.add(name)
        found = files.get(name) or _well_known(name)
        if found is None:
            raise InvalidSchemaError(f"{needed_by} imports {name!r}: add a reference of that name")
        for dependency in found.dependency:
            add(dependency, name)
        try:
            pool.Add(found)
        except TypeError as error:
            raise InvalidSchemaError(f"{name} does not hold together: {error}") from None

    try:
        add(MAIN_FILE, "the schema")
        return pool.FindFileByName(MAIN_FILE)
    except (KeyError, TypeError) as error:
        raise InvalidSchemaError(f"the schema does not hold together: {error}") from None


def _compile(
    texts: Mapping[str, str],
    descriptors: Mapping[str, descriptor_pb2.FileDescriptorProto | None],
    *wanted: str,
) -> dict[str, descriptor_pb2.FileDescriptorProto]:
    import grpc_tools

    with tempfile.TemporaryDirectory(prefix="millstream-proto-") as directory:
        root = Path(directory)
        for name, text in texts.items():
            _write(root, name, text)
        ready = descriptor_pb2.FileDescriptorSet(file=[file for file in descriptors.values() if file is not None])
        includes = [str(root), str(Path(grpc_tools.__file__).parent / "_proto")]
        out = root / "compiled.descriptors"
        command = [sys.executable, "-m", "grpc_tools.protoc", *(f"-I{path}" for path in includes)]
        if ready.file:
            (root / "given.descriptors").write_bytes(ready.SerializeToString())
            command.append(f"--descriptor_set_in={root / 'given.descriptors'}")
        else:
            for name in _imported_extras(texts):
                _write_well_known(root, name)
        command += ["--include_imports", f"--descriptor_set_out={out}", *(wanted or (MAIN_FILE,))]
        try:
            run = subprocess.run(
                command, cwd=root, capture_output=True, text=True, timeout=_PROTOC_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise InvalidSchemaError(f"compiling it took more than {_PROTOC_SECONDS} s") from None
        if run.returncode or not out.exists():
            raise InvalidSchemaError(_complaint(run.stderr, root) or f"protoc ended with {run.returncode}")
        return {file.name: file for file in descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file}


def _write(root: Path, name: str, text: str) -> None:
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts or not relative.parts or "\x00" in name:
        raise InvalidSchemaError(f"it is imported as {name!r}, which is no name of a file")
    try:
        (root / relative).parent.mkdir(parents=True, exist_ok=True)
        (root / relative).write_text(text, encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise InvalidSchemaError(f"{name!r} cannot be compiled: {error}") from None


def _complaint(stderr: str, root: Path) -> str:
    """protoc's words without its warnings; they say file, line and column."""
    lines = [line for line in stderr.splitlines() if line.strip() and not _NO_ERROR.match(line)]
    return "; ".join(line.replace(f"{root}/", "") for line in lines[:5])


def _imported_extras(texts: Mapping[str, str]) -> list[str]:
    """Files of Confluent's that schemas import without a reference."""
    extras = ("confluent/meta.proto", "confluent/types/decimal.proto")
    return [name for name in extras if name not in texts and any(name in text for text in texts.values())]


def _write_well_known(root: Path, name: str) -> None:
    found = _well_known(name)
    if found is not None:
        from millstream.registry.protobuf.text import ProtoPrinter

        found.name = MAIN_FILE
        _write(root, name, ProtoPrinter(_link({MAIN_FILE: found})).text())


def _well_known(name: str) -> descriptor_pb2.FileDescriptorProto | None:
    path = PurePosixPath(name)
    if path.suffix != ".proto" or not path.parts or path.parts[0] not in ("google", "confluent"):
        return None
    module = _confluents(path) if path.parts[0] == "confluent" else _googles(path)
    if module is None:
        return None
    found = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(found)
    return found


def _googles(path: PurePosixPath) -> Any:
    try:
        return importlib.import_module(".".join(path.with_suffix("").parts) + "_pb2")
    except ImportError:
        return None


def _confluents(path: PurePosixPath) -> Any:
    """Loaded from its file: the package around it is a whole HTTP client."""
    package = importlib.util.find_spec("confluent_kafka")
    if package is None or package.origin is None:
        return None
    file = Path(package.origin).parent / "schema_registry" / path.with_name(f"{path.stem}_pb2.py")
    if ".." in path.parts or not file.exists():
        return None
    spec = importlib.util.spec_from_file_location(f"millstream_{path.stem}_pb2", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
