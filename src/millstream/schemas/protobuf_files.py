"""Links a Protobuf schema with its imports: from .proto text or base64 descriptors to a FileDescriptor.

The registry, the gateway and Spark all use this. .proto text is compiled by protoc in a separate process, because an
error in protoc may end its process. Descriptors (base64, as Python's serializer registers them) are used directly.
"""

import base64
import binascii
import importlib
import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.message import DecodeError

MAIN_FILE = "default.proto"
"""File name of the schema itself, which no other file imports. Confluent's clients use this name."""
_PROTOC_TIMEOUT_SECONDS = 60
_WARNING = re.compile(r"[IW]\d{4} |WARNING: |.*: warning: ")
_CONFLUENT_FILES = (
    "confluent/meta.proto",
    "confluent/type/decimal.proto",
    "confluent/type/variant.proto",
    "confluent/types/decimal.proto",
)
"""Files that Confluent's clients let schemas import without a reference."""

Files = dict[str, descriptor_pb2.FileDescriptorProto]


class InvalidProtobufError(Exception):
    """The schema cannot be compiled or linked; the text says why."""


def link(text: str, references: Iterable[tuple[str, str]]) -> FileDescriptor:
    """The schema in a new descriptor pool, with all its imports. `references`: file names with their texts."""
    texts = dict(references) | {MAIN_FILE: text}
    descriptors = {name: found for name, content in texts.items() if (found := _deserialized(name, content))}
    sources = {name: content for name, content in texts.items() if name not in descriptors}
    if MAIN_FILE in sources:
        compiled = _compile(sources, descriptors, [MAIN_FILE])
    else:
        compiled = _compile(sources, descriptors, list(sources)) if sources else {}
    return _link(compiled | descriptors)


def message_at(file: FileDescriptor, indexes: tuple[int, ...]) -> Descriptor:
    """The message that a record names by its indexes: its index in the file, then in each enclosing message."""
    members, found = list(file.message_types_by_name.values()), None
    for index in indexes:
        if not 0 <= index < len(members):
            found = None
            break
        found = members[index]
        members = list(found.nested_types)
    if found is None:
        raise InvalidProtobufError(f"the schema has no message at index {list(indexes)}")
    return found


def _deserialized(name: str, text: str) -> descriptor_pb2.FileDescriptorProto | None:
    """A descriptor in base64; None if the text is not one."""
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

    def add(name: str, imported_by: str) -> None:
        if name in done:
            return
        done.add(name)
        found = files.get(name) or _well_known(name)
        if found is None:
            raise InvalidProtobufError(f"{imported_by} imports {name!r}: add a reference of that name")
        for dependency in found.dependency:
            add(dependency, name)
        try:
            pool.Add(found)
        except TypeError as error:
            raise InvalidProtobufError(f"{name} is inconsistent: {error}") from None

    try:
        add(MAIN_FILE, "the schema")
        return pool.FindFileByName(MAIN_FILE)
    except (KeyError, TypeError) as error:
        raise InvalidProtobufError(f"the schema is inconsistent: {error}") from None


def _compile(sources: Mapping[str, str], descriptors: Files, wanted: list[str]) -> Files:
    """Descriptors of the wanted sources and of all that they import."""
    try:
        import grpc_tools
    except ImportError:
        raise InvalidProtobufError(
            "compiling .proto text needs grpcio-tools, which is not installed: pip install grpcio-tools"
        ) from None

    extras = {
        name: found
        for name in _CONFLUENT_FILES
        if name not in sources and name not in descriptors and any(name in text for text in sources.values())
        if (found := _well_known(name))
    }
    with tempfile.TemporaryDirectory(prefix="millstream-proto-") as directory:
        root = Path(directory)
        for name, text in sources.items():
            _write(root, name, text)
        includes = [str(root), str(Path(grpc_tools.__file__).parent / "_proto"), *_common_protos()]
        out = root / "compiled.descriptors"
        command = [sys.executable, "-m", "grpc_tools.protoc", *(f"-I{path}" for path in includes)]
        given = descriptors | extras
        if given:
            (root / "given.descriptors").write_bytes(_closed_set(given).SerializeToString())
            command.append(f"--descriptor_set_in={root / 'given.descriptors'}")
        command += ["--include_imports", f"--descriptor_set_out={out}", *wanted]
        try:
            run = subprocess.run(
                command, cwd=root, capture_output=True, text=True, timeout=_PROTOC_TIMEOUT_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise InvalidProtobufError(f"protoc took more than {_PROTOC_TIMEOUT_SECONDS} s") from None
        if run.returncode or not out.exists():
            raise InvalidProtobufError(_errors(run.stderr, root) or f"protoc ended with status {run.returncode}")
        return {file.name: file for file in descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file}


def _closed_set(files: Files) -> descriptor_pb2.FileDescriptorSet:
    """With the well-known files that they import: protoc looks for imports of descriptors among descriptors only."""
    closed = descriptor_pb2.FileDescriptorSet()
    done: set[str] = set()

    def add(name: str) -> None:
        if name in done:
            return
        done.add(name)
        found = files.get(name) or _well_known(name)
        if found is not None:
            for dependency in found.dependency:
                add(dependency)
            closed.file.append(found)

    for name in files:
        add(name)
    return closed


def _write(root: Path, name: str, text: str) -> None:
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts or not relative.parts or "\x00" in name:
        raise InvalidProtobufError(f"it is imported as {name!r}, which is not a valid file name")
    try:
        (root / relative).parent.mkdir(parents=True, exist_ok=True)
        (root / relative).write_text(text, encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise InvalidProtobufError(f"{name!r} cannot be compiled: {error}") from None


def _errors(stderr: str, root: Path) -> str:
    """protoc's errors without its warnings; they name file, line and column."""
    lines = [line for line in stderr.splitlines() if line.strip() and not _WARNING.match(line)]
    return "; ".join(line.replace(f"{root}/", "") for line in lines[:5])


def _common_protos() -> list[str]:
    """The directory of google/type and the like, if installed."""
    try:
        module = importlib.import_module("google.type.date_pb2")
    except ImportError:
        return []
    return [str(Path(str(module.__file__)).parent.parent.parent)]


def _well_known(name: str) -> descriptor_pb2.FileDescriptorProto | None:
    path = PurePosixPath(name)
    if path.suffix != ".proto" or not path.parts or path.parts[0] not in ("google", "confluent"):
        return None
    module = _confluent_module(path) if path.parts[0] == "confluent" else _google_module(path)
    if module is None:
        return None
    found = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(found)
    found.name = name
    return found


def _google_module(path: PurePosixPath) -> Any:
    try:
        return importlib.import_module(".".join(path.with_suffix("").parts) + "_pb2")
    except ImportError:
        return None


def _confluent_module(path: PurePosixPath) -> Any:
    """Loaded from its file, because its package imports a whole HTTP client."""
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
