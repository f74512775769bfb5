"""Loading settings: the order of the layers, and what is refused."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from streamdedup.settings.dedup import DedupSettings
from streamdedup.settings.load import load_settings
from streamdedup.settings.sections import Settings
from tests.settings.loading import SECRET, look_up, refusal


def test_a_file_overrides_defaults_a_variable_the_file_and_a_flag_both(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each layer overrides the keys that it sets in the layers below."""
    file.write_text("dedup: {threshold: 0.5, num_perm: 128, shingle_size: 4}")
    monkeypatch.setenv("STREAMDEDUP_DEDUP__NUM_PERM", "64")
    monkeypatch.setenv("STREAMDEDUP_DEDUP__SHINGLE_SIZE", "3")
    dedup = load_settings(file, dedup={"shingle_size": 2}).dedup
    assert (dedup.threshold, dedup.num_perm, dedup.shingle_size) == (0.5, 64, 2)
    assert dedup.recall == DedupSettings().recall


def test_layers_are_merged_inside_a_nested_section(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable for one key of a nested section keeps the file's other keys."""
    file.write_text(
        "kafka: {group_id: g, security: {protocol: SASL_SSL, sasl_username: u, ca_file: /ca}}"
    )
    monkeypatch.setenv("STREAMDEDUP_KAFKA__SECURITY__SASL_PASSWORD_FILE", "/secret")
    monkeypatch.setenv("STREAMDEDUP_KAFKA__SECURITY__CA_FILE", "/other")
    kafka = load_settings(file, kafka={"start": "latest"}).kafka
    assert (kafka.group_id, kafka.start, kafka.security.sasl_username) == ("g", "latest", "u")
    assert kafka.security.ca_file == Path("/other")
    assert kafka.security.sasl_password_file == Path("/secret")


def test_a_variable_sets_a_top_level_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting outside all sections has a variable too."""
    monkeypatch.setenv("STREAMDEDUP_DRAIN_BUDGET", "5s")
    assert load_settings().drain_budget == dt.timedelta(seconds=5)


def test_a_variable_may_hold_a_section_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable may hold a whole section as a JSON object."""
    monkeypatch.setenv("STREAMDEDUP_DEDUP", '{"threshold": 0.7}')
    assert load_settings().dedup.threshold == 0.7


def test_variables_are_read_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower-case variables are read, and misspelt ones refused, like upper-case ones."""
    monkeypatch.setenv("streamdedup_dedup__seed", "7")
    assert load_settings().dedup.seed == 7
    monkeypatch.setenv("streamdedup_dedup__sed", "7")
    assert "streamdedup_dedup__sed" in refusal()


def test_settings_made_directly_read_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings() reads variables; arguments override them."""
    monkeypatch.setenv("STREAMDEDUP_DEDUP__THRESHOLD", "0.6")
    monkeypatch.setenv("STREAMDEDUP_DEDUP__SEED", "2")
    assert Settings().dedup.threshold == 0.6
    made = Settings(dedup={"threshold": 0.9})  # type: ignore[arg-type]
    assert (made.dedup.threshold, made.dedup.seed) == (0.9, 2)


def test_a_section_object_may_be_an_override(monkeypatch: pytest.MonkeyPatch) -> None:
    """A section object replaces the section of the other layers."""
    monkeypatch.setenv("STREAMDEDUP_DEDUP__SEED", "2")
    assert load_settings(dedup=DedupSettings(threshold=0.9)).dedup == DedupSettings(threshold=0.9)


@pytest.mark.parametrize("text", ["", "# nothing\n", "kafka:\n", "kafka:\n  security:\n"], ids=repr)
def test_an_empty_file_or_section_is_the_defaults(file: Path, text: str) -> None:
    """A section in which every line is a comment has its defaults."""
    file.write_text(text)
    assert load_settings(file) == Settings()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("dedupe: {}", "unknown setting dedupe; did you mean dedup?", id="top level"),
        pytest.param("dedup: {treshold: 1}", "did you mean dedup.threshold?", id="section"),
        pytest.param(
            "kafka: {security: {sasl_user: x}}",
            "unknown setting kafka.security.sasl_user; did you mean kafka.security.sasl_username?",
            id="nested section",
        ),
        pytest.param("_env_prefix: X_", "unknown setting _env_prefix", id="argument of pydantic"),
        pytest.param("Kafka: {}", "unknown setting Kafka; did you mean kafka?", id="case"),
        pytest.param("1: x", "unknown setting 1", id="number as a key"),
        pytest.param(
            "kafka: {sasl_password secret, group_id: x}",
            "the name of a setting has spaces or signs; is a colon missing?",
            id="no colon",
        ),
        pytest.param("kafka: {1: x}", "kafka", id="number as a key of a section"),
        pytest.param("kafka: 3", "kafka: ", id="section not a mapping"),
        pytest.param("- a", "does not contain a mapping", id="list"),
        pytest.param("dedup: {}\ndedup: {seed: 2}", "given twice (line 1", id="section twice"),
        pytest.param("dedup:\n  seed: 1\n  seed: 2", "given twice (line 2", id="key twice"),
        pytest.param("a: [", "is not valid YAML", id="no YAML"),
        pytest.param("dedup: {threshold: null}", "dedup.threshold: ", id="null"),
        pytest.param(f"drain_budget: {'9' * 5000}", "put it in quotes", id="many digits"),
        pytest.param("drain_budget: 2024-02-30", "put it in quotes", id="impossible date"),
        pytest.param("drain_budget: !!int ''", "put it in quotes", id="empty number"),
        pytest.param("drain_budget: !!bool x", "put it in quotes", id="tagged word"),
        pytest.param("drain_budget: !!timestamp x", "put it in quotes", id="tagged time"),
        pytest.param("a: " + "[" * 5000, "nested too deeply", id="nested"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(file: Path, text: str, message: str) -> None:
    """The message names the unknown key or the wrong place."""
    file.write_text(text)
    assert message in refusal(file)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """The message names a missing file, a directory and a binary file."""
    assert "nowhere.yaml" in refusal(tmp_path / "nowhere.yaml")
    assert str(tmp_path) in refusal(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xfa")
    assert "is not valid YAML" in refusal(tmp_path / "binary")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("STREAMDEDUP_DEDUP__TRESHOLD", "did you mean dedup.threshold?", id="key"),
        pytest.param("STREAMDEDUP_DEDUPE__SEED", "did you mean dedup.seed?", id="section"),
        pytest.param("STREAMDEDUP_DRAIN_BUDGT", "did you mean drain_budget?", id="top level"),
        pytest.param("STREAMDEDUP_DRAIN_BUDGET__X", "unknown setting drain_budget.x", id="deeper"),
        pytest.param("STREAMDEDUP_STATUS_PORT", "did you mean status.port?", id="one underscore"),
    ],
)
def test_a_misspelt_variable_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    """A variable with our prefix that is not a setting is named, with the closest setting."""
    monkeypatch.setenv(name, "1")
    assert refusal().startswith(f"environment variable {name}: unknown setting")
    assert message in refusal()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("STREAMDEDUP_SERVICE_HOST", "10.0.0.1"),
        ("STREAMDEDUP_SERVICE_PORT", "9464"),
        ("STREAMDEDUP_SERVICE_PORT_HTTP", "9464"),
        ("STREAMDEDUP_PORT", "tcp://10.0.0.1:9464"),
        ("STREAMDEDUP_STATUS_PORT", "tcp://10.0.0.1:9464"),
        ("STREAMDEDUP_PORT_9464_TCP", "tcp://10.0.0.1:9464"),
        ("STREAMDEDUP_METRICS_PORT_9464_TCP_ADDR", "10.0.0.1"),
        ("STREAMDEDUP_TEST_BROKER", "localhost:9092"),
    ],
)
def test_variables_of_kubernetes_and_the_tests_are_ignored(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """A Kubernetes service called streamdedup does not keep the worker from starting."""
    monkeypatch.setenv(name, value)
    assert load_settings() == Settings()


def test_a_section_that_is_not_json_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the section if its variable is not valid JSON."""
    monkeypatch.setenv("STREAMDEDUP_KAFKA", f"x{SECRET}")
    assert '"kafka"' in refusal()
    assert SECRET not in refusal()


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("a:1", ("a:1",)),
        ("a:1,b:2", ("a:1", "b:2")),
        ("a:1, b:2", ("a:1", "b:2")),
        ('["a:1", "b:2"]', ("a:1", "b:2")),
        ("[::1]:9092,b:2", ("[::1]:9092", "b:2")),
    ],
    ids=repr,
)
def test_a_variable_holds_a_list(
    monkeypatch: pytest.MonkeyPatch, text: str, servers: tuple[str, ...]
) -> None:
    """Lists have commas or are JSON; an IPv6 address is not parsed as JSON."""
    monkeypatch.setenv("STREAMDEDUP_KAFKA__BOOTSTRAP_SERVERS", text)
    assert load_settings().kafka.bootstrap_servers == servers


def test_a_file_holds_a_list_or_one_text(file: Path) -> None:
    """A list with one element may be written without brackets."""
    file.write_text("records: {text_fields: title}\nkafka: {bootstrap_servers: ['a:1', 'b:2']}")
    settings = load_settings(file)
    assert settings.records.text_fields == ("title",)
    assert settings.kafka.bootstrap_servers == ("a:1", "b:2")


@pytest.mark.parametrize(
    "name",
    ["records.id_field", "records.namespace_field", "dedup.bands", "kafka.security.ca_file"],
)
def test_an_empty_variable_is_null(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """An empty variable sets a path, field or number to null."""
    monkeypatch.setenv("STREAMDEDUP_" + name.upper().replace(".", "__"), "")
    assert look_up(load_settings(), name) is None


def test_one_problem_has_no_count() -> None:
    """Only further problems are counted."""
    assert "more)" not in refusal(dedup={"threshold": 3})


def test_a_mistake_in_yaml_has_its_place(file: Path) -> None:
    """Lines and columns count from one, as in editors."""
    file.write_text("dedup:\n  threshold: ]\n")
    assert "(line 2, column 14)" in refusal(file)


def test_a_profile_in_brackets_may_have_spaces_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable holds a list as YAML does."""
    monkeypatch.setenv("STREAMDEDUP_DEDUP__PROFILE", "[ nfkc, casefold ] ")
    assert load_settings().dedup.profile == ("nfkc", "casefold")
