"""``streamdedup config``: the output of each command, and the generated documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner, Result

from streamdedup.cli import config
from streamdedup.errors import SettingsError
from streamdedup.settings.load import load_settings, walk
from streamdedup.settings.secrets import MASK
from streamdedup.settings.sections import Settings
from streamdedup.settings.units import Section
from tests.support.paths import ROOT

SECRET = "hunter2-very-secret"  # noqa: S105 - an invented one
SECURITY = {"protocol": "SASL_SSL", "sasl_username": "u"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the path of a settings file."""
    return tmp_path / "settings.yaml"


def run(*arguments: str | Path) -> Result:
    """Run a command of `streamdedup config`."""
    return CliRunner().invoke(config.app, [str(argument) for argument in arguments])


def printed(*arguments: str | Path) -> str:
    """Return the output of a command; it must succeed."""
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def schema() -> Any:
    """Return the printed JSON Schema."""
    return json.loads(printed("schema"))


def test_check_says_ok_and_what_follows() -> None:
    """The text shows the bands, the S-curve, the fingerprint and the transactional id."""
    lines = printed("check", "--offline").splitlines()
    assert lines[0] == "ok"
    assert lines[1] == "bands x rows      20 x 7, 140 of 256 MinHash values"
    assert "S-curve at 0.5    0.1452" in lines
    assert lines[-2].split() == ["fingerprint", Settings().dedup.sketch_parameters().fingerprint()]
    assert lines[-1].split() == ["transactional", "id", "documents-changelog"]


def test_check_prints_the_same_as_json(file: Path) -> None:
    """The JSON has the same facts; the curve includes the threshold."""
    file.write_text("dedup: {threshold: 0.75, bands: 10, rows: 5}\ntopics: {changelog: log}")
    facts = json.loads(printed("check", "--offline", "--config", file, "--json"))
    curve = facts.pop("candidate_probability")
    assert facts == {
        "ok": True,
        "bands": 10,
        "rows": 5,
        "num_perm": 256,
        "threshold": 0.75,
        "fingerprint": load_settings(file).dedup.sketch_parameters().fingerprint(),
        "transactional_id": "log",
    }
    assert list(curve) == ["0.5", "0.6", "0.7", "0.75", "0.8", "0.9"]
    assert curve["0.5"] == pytest.approx(1 - (1 - 0.5**5) ** 10, abs=1e-6)
    assert sorted(curve.values()) == list(curve.values())


def test_check_refuses_what_run_would_refuse(file: Path) -> None:
    """An invalid file is a SettingsError, which becomes one line and exit code 3."""
    file.write_text("dedup: {treshold: 0.7}")
    result = run("check", "-c", file)
    assert isinstance(result.exception, SettingsError)
    assert result.stdout == ""


def test_check_says_what_is_wrong_as_json_too(file: Path) -> None:
    """With --json the error is printed as JSON and raised."""
    file.write_text("dedup: {threshold: 7}")
    result = run("check", "-c", file, "--json")
    assert isinstance(result.exception, SettingsError)
    assert json.loads(result.stdout) == {"ok": False, "error": str(result.exception)}


def test_check_tells_of_brokers_that_are_away(file: Path, tmp_path: Path) -> None:
    """Without a broker the disk is still checked; the exit code is 7."""
    index = {"directory": str(tmp_path / "index"), "disk_budget": "1MiB"}
    kafka = {"bootstrap_servers": "127.0.0.1:9", "request_timeout": "1s"}
    file.write_text(yaml.safe_dump({"index": index, "kafka": kafka}))
    result = run("check", "-c", file, "--json")
    assert result.exit_code == 7
    found = json.loads(result.stdout)
    assert found["ok"] is False
    assert found["bands"] == 20
    levels = {one["check"]: one["level"] for one in found["findings"]}
    assert levels["index directory"] == "ok"
    assert levels["disk room"] == "warning"
    assert levels["bootstrap servers"] == "error"
    assert levels["the rest"] == "not checked"
    assert not (tmp_path / "index").exists()

    table = run("check", "-c", file)
    assert table.exit_code == 7
    lines = table.stdout.splitlines()
    assert lines[0].startswith("bands x rows")
    # The second warning is about the temporary file system of a container.
    assert lines[-1] in ("1 error, 1 warning", "1 error, 2 warnings")
    (refusal,) = [number for number, line in enumerate(lines) if line.startswith("error ")]
    assert "127.0.0.1:9" in lines[refusal]
    assert lines[refusal + 1].split() == ["->", "Kafka", "administrator"]


def test_check_names_a_directory_that_cannot_be(file: Path) -> None:
    """An index directory that cannot be created is the first error."""
    file.write_text(
        f"index: {{directory: {file}/index}}\n"
        "kafka: {bootstrap_servers: '127.0.0.1:9', request_timeout: 1s}\n"
    )
    result = run("check", "-c", file)
    assert result.exit_code == 9
    assert f"{file} is not a directory" in result.stdout


def test_show_prints_what_loads_as_the_same_settings(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The printed settings of file and environment load as the same settings."""
    file.write_text(
        "index: {disk_budget: 3Gi, directory: /data}\n"
        "records: {text_fields: [title, body], id_field: null}\n"
        "drain_budget: 1h30m\n"
    )
    monkeypatch.setenv("STREAMDEDUP_DEDUP__THRESHOLD", "0.7")
    expected = load_settings(file)
    again = tmp_path / "again.yaml"
    again.write_text(printed("show", "--config", file))
    monkeypatch.delenv("STREAMDEDUP_DEDUP__THRESHOLD")
    assert load_settings(again) == expected
    assert expected.dedup.threshold == 0.7


def test_show_masks_secrets(file: Path, tmp_path: Path) -> None:
    """The password is masked, and its mask is rejected as a password."""
    values = {"kafka": {"security": {**SECURITY, "sasl_password": SECRET}}}
    file.write_text(yaml.safe_dump(values))
    shown = printed("show", "-c", file)
    assert SECRET not in shown
    assert yaml.safe_load(shown)["kafka"]["security"]["sasl_password"] == MASK
    again = tmp_path / "again.yaml"
    again.write_text(shown)
    with pytest.raises(SettingsError, match="mask of a printed secret"):
        load_settings(again)


def test_the_schema_is_one_and_takes_the_example_file() -> None:
    """The schema is valid; the example file and the output of `show` conform to it."""
    jsonschema.Draft202012Validator.check_schema(schema())
    validator = jsonschema.Draft202012Validator(schema())
    validator.validate(yaml.safe_load((ROOT / "config" / "streamdedup.yaml").read_text()))
    validator.validate(yaml.safe_load(printed("show")))


@pytest.mark.parametrize(
    "values",
    [
        {"dedupe": {}},
        {"dedup": {"treshold": 1}},
        {"kafka": {"security": {"x": 1}}},
        {"dedup": {"threshold": 1.1}},
        {"dedup": {"profile": "poem"}},
        {"log": {"level": "loud"}},
        {"topics": {"clean": "a b"}},
        {"drain_budget": []},
    ],
    ids=str,
)
def test_the_schema_refuses_what_loading_refuses(values: dict[str, Any]) -> None:
    """Unknown keys and values out of bounds violate the schema."""
    with pytest.raises(SettingsError):
        load_settings(**values)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values, schema())


def test_the_schema_describes_every_setting() -> None:
    """Each setting has a description, and its default as a file writes it."""
    definitions = schema()["$defs"]
    for model in definitions.values():
        for name, field in model["properties"].items():
            assert field.get("description"), name
    assert definitions["KafkaSettings"]["properties"]["request_timeout"]["default"] == "30s"
    assert definitions["LimitSettings"]["properties"]["value_bytes"]["default"] == "4MiB"


def test_the_document_is_up_to_date() -> None:
    """docs/settings.md equals the output of `streamdedup config schema --markdown`."""
    assert (ROOT / "docs" / "settings.md").read_text() == printed("schema", "--markdown")


def test_the_document_has_a_row_for_every_setting() -> None:
    """Each setting has one row with its default, its values and its meaning."""
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in printed("schema", "--markdown").splitlines()
        if line.startswith("| `")
    ]
    leaves = {name: field for name, field in walk() if not isinstance(field.default, Section)}
    assert sorted(row[0].strip("`") for row in rows) == sorted(leaves)
    for row in rows:
        assert len(row) == 3, row
        assert all(row), row


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("kafka.request_timeout", "`30s`; 1s to 1h"),
        ("kafka.bootstrap_servers", '`["127.0.0.1:9092"]`; list'),
        ("kafka.security.sasl_password", "`null`; secret"),
        ("kafka.security.sasl_username", "empty; text"),
        ("dedup.profile", "`plain`; `forum`, `news`, `plain`, `post`, or a list of steps"),
        ("dedup.threshold", "`0.8`; number > 0.0, <= 1.0"),
        ("dedup.bands", "`null`; 1 to 1000"),
        ("index.directory", "`streamdedup-index`; path"),
        ("limits.value_bytes", "`4MiB`; 1 to 1GiB"),
        ("index.window", "`null`; 1ms to 36500d"),
        ("index.allowed_lateness", "`null`; 0 to 36500d"),
        ("index.disk_budget", "`null`; size >= 1MiB"),
        ("index.sync", "`true`; boolean"),
        ("log.level", "`info`; `debug`, `info`, `warning`, `error`"),
    ],
)
def test_the_document_says_which_values_are_taken(name: str, cells: str) -> None:
    """Types, bounds and choices are written as in the settings file."""
    assert f"| `{name}` | {cells} | " in printed("schema", "--markdown")
