"""*Blocking.* Write the worker's settings into the chart's values.schema.json, under ``config``.

The rest of the schema is written by hand and does not change. With the schema, Helm refuses
misspelt settings before a deployment::

    streamdedup config schema | python values_schema.py values.schema.json
"""  # noqa: INP001 - a script, not a package

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PREFIX = "Settings."
"""Prefix of the worker's definitions."""
SETTINGS_OF_THE_CHART = {
    "IndexSettings": ["directory"],
    "StatusSettings": ["port"],
    # Passwords belong in a secret, not in a ConfigMap.
    "SecuritySettings": ["sasl_password"],
    "RegistrySettings": ["password"],
}


def chart_schema(chart: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Return the chart's schema with its settings replaced.

    Args:
        chart: the present values.schema.json.
        settings: the output of ``streamdedup config schema``.

    Raises:
        KeyError: a setting of ``SETTINGS_OF_THE_CHART`` does not exist.
    """
    definitions = settings.pop("$defs")
    for section, names in SETTINGS_OF_THE_CHART.items():
        for name in names:
            del definitions[section]["properties"][name]
    settings.pop("$schema")
    mine = {name: of for name, of in chart["$defs"].items() if not name.startswith(PREFIX)}
    theirs = {PREFIX + name: _renamed(of) for name, of in sorted(definitions.items())}
    properties = {**chart["properties"], "config": _renamed(settings)}
    return {**chart, "properties": properties, "$defs": {**mine, **theirs}}


def _renamed(schema: Any) -> Any:
    """Return a part of the settings' schema with renamed references, without defaults.

    values.yaml has the chart's defaults.
    """
    if isinstance(schema, list):
        return [_renamed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {}
    for name, part in schema.items():
        if name == "$ref":
            kept[name] = part.replace("#/$defs/", f"#/$defs/{PREFIX}")
        elif name == "properties":
            kept[name] = {setting: _renamed(of) for setting, of in part.items()}
        elif name not in ("default", "title"):
            kept[name] = _renamed(part)
    return kept


def main() -> None:
    """Read the settings' schema from standard input, and update the chart's schema."""
    path = Path(sys.argv[1])
    chart = json.loads(path.read_text(encoding="utf-8"))
    schema = chart_schema(chart, json.load(sys.stdin))
    path.write_text(json.dumps(schema, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
