"""*Blocking.* Check the rendered chart: objects by their schemas, settings by the worker.

Every object must match the strict schema of each supported Kubernetes version. Objects of the
Prometheus operator and of KEDA must match their CRDs, those of Strimzi the schema beside this file.
An object without a schema is an error. The settings file must pass ``streamdedup config check``, in
the environment of each container::

    python check_manifests.py --definitions DIRECTORY ... --streamdedup PROGRAM --rendered FILE ...
"""  # noqa: INP001 - a script, not a package

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

VERSIONS = ("1.29", "1.30", "1.31", "1.32", "1.33", "1.34", "1.35", "1.36", "1.37")
"""From the oldest version that Chart.yaml allows to the newest with known schemas."""
CUSTOM = {
    "monitoring.coreos.com_podmonitors": "v1",
    "monitoring.coreos.com_prometheusrules": "v1",
    "keda.sh_scaledobjects": "v1alpha1",
}
"""The CRDs of the objects that the chart uses, and their versions."""
STRIMZI = Path(__file__).parent / "strimzi.schema.json"
SEED_FILE = "/etc/streamdedup/seed/seed"
"""The file of the secret seed in the container; the worker reads it with its settings."""

Manifest = dict[str, Any]


def main() -> int:
    """Check the files of the command line; return 1 if any has a problem."""
    parser = argparse.ArgumentParser(description="Check the rendered chart.")
    parser.add_argument(
        "--definitions", type=Path, nargs="+", required=True, help="folders with CRDs"
    )
    parser.add_argument("--streamdedup", required=True, help="the program that checks settings")
    parser.add_argument(
        "--rendered", type=Path, nargs="+", required=True, help="output of helm template"
    )
    arguments = parser.parse_args()
    custom = {**custom_schemas(arguments.definitions), **strimzi_schemas()}
    problems = 0
    for path in arguments.rendered:
        manifests = [one for one in yaml.safe_load_all(path.read_text(encoding="utf-8")) if one]
        found = [*schema_problems(manifests, custom)]
        found += settings_problems(manifests, arguments.streamdedup)
        for problem in found:
            sys.stderr.write(f"{path.name}: {problem}\n")
        sys.stdout.write(f"{path.name}: {len(manifests)} objects, {len(found)} problems\n")
        problems += len(found)
    return min(problems, 1)


def custom_schemas(directories: list[Path]) -> dict[str, Manifest]:
    """Return strict schemas of the operators' objects in the chart, by kind."""
    schemas = {}
    for name, wanted in CUSTOM.items():
        (path,) = [path for each in directories for path in each.glob(f"{name}.yaml")]
        definition = yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]
        (version,) = [one for one in definition["versions"] if one["name"] == wanted]
        schema = strict(version["schema"]["openAPIV3Schema"])
        schema["properties"]["metadata"] = {"type": "object", "required": ["name"]}
        schemas[definition["names"]["kind"]] = schema
    return schemas


def strict(schema: Any) -> Any:
    """Return the schema of a custom resource, with unknown fields refused."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    result = {name: strict(part) for name, part in schema.items()}
    if result.pop("x-kubernetes-int-or-string", False):
        result["type"] = ["integer", "string"]
    if "properties" in result and not result.get("x-kubernetes-preserve-unknown-fields"):
        result.setdefault("additionalProperties", False)
    return result


def strimzi_schemas() -> dict[str, Manifest]:
    """Return the schemas of Strimzi's objects in the chart, by kind."""
    schema = yaml.safe_load(STRIMZI.read_text(encoding="utf-8"))
    return {
        kind: {"$ref": f"#/$defs/{kind}", "$defs": schema["$defs"]}
        for kind in ("KafkaTopic", "KafkaUser")
    }


def schema_problems(manifests: list[Manifest], custom: dict[str, Manifest]) -> Iterator[str]:
    """Yield a line for each schema violation."""
    for manifest in manifests:
        name = f"{manifest['kind']} {manifest['metadata']['name']}"
        if manifest["kind"] in custom:
            validator = jsonschema.Draft202012Validator(custom[manifest["kind"]])
            for error in validator.iter_errors(manifest):
                yield f"{name}: {error.json_path}: {error.message}"
            continue
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(manifest, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                yield f"{name}: Kubernetes {version}: {error.json_path}: {error.message}"
            except kubernetes_validate.SchemaNotFoundError as error:
                yield f"{name}: Kubernetes {version}: {error.message}"


def settings_problems(manifests: list[Manifest], streamdedup: str) -> list[str]:
    """Return the errors of the pods about their settings, in the environment of each container."""
    (text,) = [
        one["data"]["streamdedup.yaml"]
        for one in manifests
        if one["kind"] == "ConfigMap" and "streamdedup.yaml" in one["data"]
    ]
    containers = [
        container
        for one in manifests
        if one["kind"] in ("StatefulSet", "Deployment")
        for container in one["spec"]["template"]["spec"]["containers"]
    ]
    problems = [_settings_problem(text, container, streamdedup) for container in containers]
    return [problem for problem in problems if problem]


def _settings_problem(text: str, container: Manifest, streamdedup: str) -> str:
    """Return the worker's error about its settings in one container; empty if there is none."""
    given = {one["name"]: one.get("value", "from-elsewhere") for one in container.get("env", [])}
    inherited = {name: of for name, of in os.environ.items() if not _is_setting(name)}
    with tempfile.TemporaryDirectory() as directory:
        path, seed = Path(directory) / "streamdedup.yaml", Path(directory) / "seed"
        seed.write_text("0123456789abcdef" * 2, encoding="utf-8")
        path.write_text(text.replace(SEED_FILE, str(seed)), encoding="utf-8")
        ran = subprocess.run(  # noqa: S603 - a trusted program
            [streamdedup, "config", "check", "--offline", "--config", str(path)],
            capture_output=True,
            text=True,
            check=False,
            env=inherited | given,
        )
    return "" if ran.returncode == 0 else f"the settings: {ran.stderr.strip()}"


def _is_setting(name: str) -> bool:
    return re.match("streamdedup_", name, re.IGNORECASE) is not None


if __name__ == "__main__":
    sys.exit(main())
