"""Validators of the published JSON Schemas."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import jsonschema

FOLDER = Path(__file__).resolve().parents[2] / "schemas"


@cache
def validator(name: str) -> jsonschema.Draft202012Validator:
    """The validator of `schemas/<name>.schema.json`; the schema is itself held against its dialect."""
    made = json.loads((FOLDER / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(made)
    return jsonschema.Draft202012Validator(made)
