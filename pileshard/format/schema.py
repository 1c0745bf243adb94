"""Writes the JSON Schemas of the files that a dataset has, for programs in other languages.

    python -m pileshard.format.schema schemas/

The structs that msgspec decodes are the source; their docstrings give the descriptions.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

DIALECT = "https://json-schema.org/draft/2020-12/schema"

#: Name of each schema, the struct behind it, and its title. By name, since the structs live above this package.
SCHEMAS = {
    "manifest": ("pileshard.format.manifest:Manifest", "manifest.json of a pileshard dataset"),
    "rejected-line": ("pileshard.format.rejected:RejectedLine", "one line of rejected/<input>.jsonl"),
    "verify-report": ("pileshard.audit.report:Report", "what `pileshard verify --json` writes"),
    "repair-report": ("pileshard.audit.repair:RepairReport", "what `pileshard repair --json` writes"),
    "inspect-row": ("pileshard.audit.inspect:RowView", "what `pileshard inspect --position --json` prints"),
    "inspect-document": ("pileshard.audit.inspect:DocumentView", "what `pileshard inspect --document --json` prints"),
    "inspect-shard": ("pileshard.audit.browse:ShardView", "what `pileshard inspect --shard --json` prints"),
    "inspect-search": ("pileshard.audit.search:SearchView", "what `pileshard inspect --find --json` prints"),
    "forecast": ("beam_jobs.forecast:Forecast", "what `pileshard build --plan-only --json` prints"),
    "status": ("beam_jobs.status:Status", "what `pileshard status --json` prints"),
    "statistics": ("pileshard.audit.statistics_report:Statistics", "what `pileshard stats --json` writes"),
    "job": ("beam_jobs.job:JobRecord", "_build/job.json: what an output is being built from"),
}

_ENTRY = re.compile(r"^  (\w+): (.*)$")
_CONTINUED = re.compile(r"^    (\S.*)$")


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of one kind of file.

    Args:
      name: a key of SCHEMAS.
    """
    where, title = SCHEMAS[name]
    module, _, struct = where.partition(":")
    root = getattr(importlib.import_module(module), struct)
    (out,), definitions = msgspec.json.schema_components([root], ref_template="#/$defs/{name}")
    for kind in _structs(root):
        _describe(kind, definitions[kind.__name__])
    top = definitions.pop(out["$ref"].rsplit("/", 1)[-1])
    # What names the form has a default in the struct, and is in every file all the same.
    versions = [name for name in top["properties"] if name in ("format", "version") or name.endswith("_version")]
    top["required"] = [*versions, *(name for name in top.get("required", []) if name not in versions)]
    made = {"$schema": DIALECT, **top, "title": title}
    if definitions:
        made["$defs"] = dict(sorted(definitions.items()))
    return made


def _structs(root: type) -> Iterator[type]:
    """The struct and those within it, each once."""
    seen: set[type] = set()

    def walk(kind: msgspec.inspect.Type) -> None:
        if isinstance(kind, (msgspec.inspect.StructType, msgspec.inspect.DataclassType)):
            if kind.cls in seen:
                return
            seen.add(kind.cls)
            for field in kind.fields:
                walk(field.type)
        for name in ("item_type", "value_type", "type"):
            if isinstance(inner := getattr(kind, name, None), msgspec.inspect.Type):
                walk(inner)
        for inner in getattr(kind, "types", ()):
            walk(inner)

    walk(msgspec.inspect.type_info(root))
    yield from seen


def _describe(kind: type, made: dict[str, Any]) -> None:
    """Moves a docstring's section of attributes to the properties it describes."""
    text, _, attributes = inspect.cleandoc(kind.__doc__ or "").partition("\n\nAttributes:\n")
    made["description"] = text.replace("\n\n", "\n")
    name = ""
    for line in attributes.splitlines():
        if entry := _ENTRY.match(line):
            name = entry.group(1)
            made["properties"][name]["description"] = entry.group(2)
        elif name and (more := _CONTINUED.match(line)):
            made["properties"][name]["description"] += f" {more.group(1)}"


def text(name: str) -> str:
    """The file of one schema."""
    return json.dumps(schema(name), indent=1, ensure_ascii=False) + "\n"


def main(directory: str) -> None:
    """Writes all schemas into a directory."""
    for name in SCHEMAS:
        (Path(directory) / f"{name}.schema.json").write_text(text(name), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "schemas")
