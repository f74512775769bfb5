"""*Blocking.* Write the worker's settings into the chart's values.schema.json, under ``config``.

The rest of the schema is written by hand and stays as it is. So Helm refuses a misspelt setting
before anything is deployed::

    streamdedup config schema | python values_schema.py values.schema.json
"""  # noqa: INP001 - a script, not a package

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PREFIX = "Settings."
"""Begins the names of those definitions that are the worker's."""
SETTING_OF_THE_CHART = {
    "IndexSettings": ["directory"],
    "StatusSettings": ["port"],
    # A ConfigMap is no place for a password; a secret of its own is.
    "SecuritySettings": ["sasl_password"],
}


def chart_schema(chart: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Return the chart's schema with the settings' in it, in place of those that were there.

    Args:
        chart: values.schema.json as it is.
        settings: what ``streamdedup config schema`` prints.

    Raises:
        KeyError: a setting that belongs to the chart is not among the settings.
    """
    definitions = settings.pop("$defs")
    for section, names in SETTING_OF_THE_CHART.items():
        for name in names:
            del definitions[section]["properties"][name]
    settings.pop("$schema")
    mine = {name: of for name, of in chart["$defs"].items() if not name.startswith(PREFIX)}
    theirs = {PREFIX + name: _renamed(of) for name, of in sorted(definitions.items())}
    properties = {**chart["properties"], "config": _renamed(settings)}
    return {**chart, "properties": properties, "$defs": {**mine, **theirs}}


def _renamed(schema: Any) -> Any:
    """Return a part of the settings' schema with its references renamed, and without defaults.

    The defaults that matter here are those of values.yaml.
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
    """Read the settings' schema on standard input, and rewrite the chart's."""
    path = Path(sys.argv[1])
    chart = json.loads(path.read_text(encoding="utf-8"))
    schema = chart_schema(chart, json.load(sys.stdin))
    path.write_text(json.dumps(schema, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
