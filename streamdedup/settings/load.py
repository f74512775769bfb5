"""*Blocking* (reads files). Loads settings: defaults < YAML file < environment < flags, key by key.

A layer that gives one key of a section leaves the section's other keys unchanged.

Rule 1: an unknown or invalid setting is an error in every layer.
Rule 2: no error message shows the value of a secret, or a line of a file that may contain one.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource
from pydantic_settings import SettingsError as UnreadableEnvironment

from streamdedup.errors import SettingsError
from streamdedup.settings.sections import ENVIRONMENT_PREFIX, Settings
from streamdedup.settings.units import Section

_SERVICE_LINK = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_\w+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?$")
"""Variables that Kubernetes sets for the services of a namespace."""
_NAME = re.compile(r"[\w.-]{1,80}")


def walk(model: type[BaseModel] = Settings, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield every section and setting with its dotted name, in the order of declaration.

    The default of a section is an instance of :class:`Section`.
    """
    for name, field in model.model_fields.items():
        yield prefix + name, field
        if isinstance(field.default, Section):
            yield from walk(type(field.default), f"{prefix}{name}.")


def load_settings(path: Path | None = None, **overrides: Any) -> Settings:
    """Load the settings: defaults < file < environment < overrides.

    Args:
        path: YAML file, or None.
        overrides: nested settings of the highest priority, as ``dedup={"threshold": 0.9}``.

    Raises:
        SettingsError: the file cannot be read, or a setting is unknown or invalid.
    """
    layers = [_read_yaml(path) if path is not None else {}, _read_environment(), overrides]
    try:
        return Settings(**_merge(*layers))
    except ValidationError as error:
        raise SettingsError(_first_problem(error)) from None


def _merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings key by key at every level; later mappings win."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            below = merged.get(name)
            if isinstance(below, Mapping) and isinstance(value, Mapping):
                merged[name] = _merge(below, value)
            else:
                merged[name] = value
    return merged


_YAML_ERRORS = (
    *(yaml.YAMLError, RecursionError),
    *(ValueError, ArithmeticError, LookupError, AttributeError, TypeError),
)
"""What PyYAML raises. The second line is for dates, numbers and tagged values: 2024-02-30."""


class _UniqueKeys(yaml.SafeLoader):
    """Rejects a key that is given twice; YAML would silently drop the first one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build a mapping in which each key occurs once."""
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            raise yaml.MarkedYAMLError(problem="a key is given twice", problem_mark=node.start_mark)
        return mapping


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeys)  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    except _YAML_ERRORS as error:
        raise SettingsError(f"{path} is not valid YAML: {_yaml_problem(error)}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise SettingsError(
            f"{path} does not contain a mapping of settings; "
            "expected e.g. dedup: {threshold: 0.8}"
        )
    for name in values:
        if name not in Settings.model_fields:
            raise SettingsError(f"{path}: {_unknown(str(name))}")
    return values


def _yaml_problem(error: Exception) -> str:
    """Describe an error and its place without the quoted text, which may contain a secret."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if not isinstance(error, yaml.YAMLError | UnicodeDecodeError):
        return "a date, a number or a tagged value cannot be read; put it in quotes"
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return "it is not UTF-8 text"
    mark = error.problem_mark
    problem = str(error.problem).split("'")[0].strip()
    return f"{problem} (line {mark.line + 1}, column {mark.column + 1})"


def _read_environment() -> dict[str, Any]:
    known = {name for name, _ in walk()}
    for variable, value in os.environ.items():
        name = variable.upper()
        if not name.startswith(ENVIRONMENT_PREFIX) or _is_not_ours(name, value):
            continue
        setting = name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
        if setting not in known:
            raise SettingsError(f"environment variable {variable}: {_unknown(setting)}")
    try:
        return EnvSettingsSource(Settings)()
    except UnreadableEnvironment as error:
        raise SettingsError(f"environment: {error}") from None


def _is_not_ours(name: str, value: str) -> bool:
    """Return whether a variable with our prefix belongs to the tests or to a Kubernetes service."""
    if name.startswith(f"{ENVIRONMENT_PREFIX}TEST_") or _SERVICE_LINK.search(name):
        return True
    return name.endswith("_PORT") and value.startswith(("tcp://", "udp://", "sctp://"))


def _first_problem(error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    first = problems[0]
    where = ".".join(str(part) for part in first["loc"])
    what = first["msg"].removeprefix("Value error, ")
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    if first["type"] == "extra_forbidden":
        return _unknown(where) + more
    return f"{where}: {what}{more}" if where else what + more


def _unknown(name: str) -> str:
    """Describe an unknown setting, and suggest the closest known one."""
    if not _NAME.fullmatch(name):
        # Without its colon, a value belongs to the name: it may be a secret.
        return "the name of a setting has spaces or signs; is a colon missing?"
    close = difflib.get_close_matches(name, [known for known, _ in walk()], n=1)
    return f"unknown setting {name}" + (f"; did you mean {close[0]}?" if close else "")
