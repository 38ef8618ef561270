"""JSON schemas of files that other programs read, from the wheel check-jsonschema."""

from __future__ import annotations

import json
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import jsonschema


def problems(schema: str, document: Any) -> list[str]:
    """What a document has against the schema of that name; `compose-spec`, for example."""
    # The wheel's data alone: its program needs packages that are not installed.
    file = distribution("check-jsonschema").locate_file(f"check_jsonschema/builtin_schemas/vendor/{schema}.json")
    found = json.loads(Path(str(file)).read_text())
    validator = jsonschema.validators.validator_for(found)(found)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]
