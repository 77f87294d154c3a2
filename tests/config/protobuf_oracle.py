"""protobuf's own reader of the configuration, built from the recorded schema: an independent judge."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from tests.conftest import GOLDEN

PACKAGE = "object_detection.protos."
_KINDS = {"float": 2, "int32": 5, "uint32": 13, "bool": 8, "string": 9}


def _build() -> Any:  # noqa: C901  # a schema, message by message
    schema = json.loads((GOLDEN / "pipeline_schema.json").read_text())
    file = descriptor_pb2.FileDescriptorProto(name="oracle.proto", package="object_detection.protos", syntax="proto2")
    made: dict[str, Any] = {}

    def message(full: str) -> Any:
        if full not in made:
            parent, _, name = full.rpartition(".")
            owner = message(parent).nested_type if parent else file.message_type
            made[full] = owner.add(name=name)
        return made[full]

    for full in schema["messages"]:
        message(full.removeprefix(PACKAGE))
    for full, values in schema["enums"].items():
        parent, _, name = full.removeprefix(PACKAGE).rpartition(".")
        enum = (message(parent) if parent else file).enum_type.add(name=name)
        for key, number in values.items():
            enum.value.add(name=key, number=number)
    for full, fields in schema["messages"].items():
        owner, oneofs = made[full.removeprefix(PACKAGE)], []
        for name, entry in fields.items():
            field = owner.field.add(name=name, number=entry["number"], label=3 if entry["label"] == "repeated" else 1)
            kind = entry["type"]
            if kind.startswith("enum:"):
                field.type, field.type_name = 14, "." + kind.removeprefix("enum:")
            elif kind.startswith(PACKAGE):
                field.type, field.type_name = 11, "." + kind
            else:
                field.type = _KINDS[kind]
            if "oneof" in entry:
                if entry["oneof"] not in oneofs:
                    oneofs.append(entry["oneof"])
                    owner.oneof_decl.add(name=entry["oneof"])
                field.oneof_index = oneofs.index(entry["oneof"])
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(PACKAGE + "TrainEvalPipelineConfig"))


_PIPELINE = _build()


def protobuf_reads(text: str) -> Any:
    """Read text format with protobuf."""
    return text_format.Parse(text, _PIPELINE())
