"""Protobuf schemas: .proto text, or a FileDescriptorProto in base64."""

import base64
from collections.abc import Sequence

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor

from millstream.registry.formats.proto_text import ProtoPrinter
from millstream.registry.formats.protobuf_compatibility import problems_reading
from millstream.registry.formats.protobuf_files import load
from millstream.registry.formats.schema import Dependency, Problem

SERIALIZED = "serialized"


class ProtobufSchema:
    def __init__(self, file: FileDescriptor) -> None:
        """InvalidSchemaError if no text says the same."""
        self.file = file
        self.canonical = ProtoPrinter(file).text()

    def normalized(self) -> str:
        return ProtoPrinter(self.file).text(sorted_=True)

    def rendered(self, form: str) -> str:
        if form != SERIALIZED:
            return self.canonical
        content = descriptor_pb2.FileDescriptorProto()
        self.file.CopyToProto(content)
        return base64.b64encode(content.SerializeToString(deterministic=True)).decode()

    def flaw(self) -> str | None:
        return None  # parsing checks every rule

    def problems_reading(self, writer: "ProtobufSchema") -> list[Problem]:
        return problems_reading(self.file, writer.file)


class ProtobufFormat:
    name = "PROTOBUF"
    forms = frozenset({SERIALIZED})

    def parse(self, text: str, dependencies: Sequence[Dependency]) -> ProtobufSchema:
        return ProtobufSchema(load(text, dependencies))
