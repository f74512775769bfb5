"""Settings: layers, refusals, units, secrets, and the files that teach them."""

from __future__ import annotations

import datetime as dt
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from streamdedup.errors import SettingsError
from streamdedup.settings.load import load_settings, walk
from streamdedup.settings.secrets import MASK, read_secret
from streamdedup.settings.sections import (
    BatchSettings,
    DedupSettings,
    Section,
    SecuritySettings,
    Settings,
)
from streamdedup.settings.units import format_duration, format_size, parse_duration, parse_size
from tests.support.paths import ROOT

EXAMPLE = ROOT / "config" / "streamdedup.yaml"
SECRET = "hunter2-very-secret"  # noqa: S105 - an invented one
LEAVES = [name for name, field in walk() if not isinstance(field.default, Section)]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the caller's variables out of the tests."""
    for name in os.environ:
        if name.upper().startswith("STREAMDEDUP_"):
            monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return where a settings file may be written."""
    return tmp_path / "settings.yaml"


def look_up(settings: Settings, name: str) -> Any:
    """Return the value of a setting by its dotted name."""
    value: Any = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value


def refusal(path: Path | None = None, **overrides: Any) -> str:
    """Return the message with which settings are refused; it is one line."""
    with pytest.raises(SettingsError) as caught:
        load_settings(path, **overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


# Layers


def test_a_file_wins_over_defaults_a_variable_over_the_file_and_a_flag_over_all(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each layer wins over the ones below it, for the keys that it gives."""
    file.write_text("dedup: {threshold: 0.5, num_perm: 128, shingle_size: 4}")
    monkeypatch.setenv("STREAMDEDUP_DEDUP__NUM_PERM", "64")
    monkeypatch.setenv("STREAMDEDUP_DEDUP__SHINGLE_SIZE", "3")
    dedup = load_settings(file, dedup={"shingle_size": 2}).dedup
    assert (dedup.threshold, dedup.num_perm, dedup.shingle_size) == (0.5, 64, 2)
    assert dedup.recall == DedupSettings().recall


def test_layers_meet_inside_a_nested_section(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable for one key two levels down leaves its siblings from the file alone."""
    file.write_text(
        "kafka: {group_id: g, security: {protocol: SASL_SSL, sasl_username: u, ca_file: /ca}}"
    )
    monkeypatch.setenv("STREAMDEDUP_KAFKA__SECURITY__SASL_PASSWORD_FILE", "/secret")
    monkeypatch.setenv("STREAMDEDUP_KAFKA__SECURITY__CA_FILE", "/other")
    kafka = load_settings(file, kafka={"ordinal": 3}).kafka
    assert (kafka.group_id, kafka.ordinal, kafka.security.sasl_username) == ("g", 3, "u")
    assert kafka.security.ca_file == Path("/other")
    assert kafka.security.sasl_password_file == Path("/secret")


def test_a_variable_gives_a_top_level_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting outside of all sections has a variable too."""
    monkeypatch.setenv("STREAMDEDUP_DRAIN_BUDGET", "5s")
    assert load_settings().drain_budget == dt.timedelta(seconds=5)


def test_a_variable_may_give_a_section_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole section may come as one JSON object."""
    monkeypatch.setenv("STREAMDEDUP_DEDUP", '{"threshold": 0.7}')
    assert load_settings().dedup.threshold == 0.7


def test_variables_are_read_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower-case variables count, and misspelt ones are refused, as upper-case ones are."""
    monkeypatch.setenv("streamdedup_dedup__seed", "7")
    assert load_settings().dedup.seed == 7
    monkeypatch.setenv("streamdedup_dedup__sed", "7")
    assert "streamdedup_dedup__sed" in refusal()


def test_settings_made_directly_read_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings() is filled from variables, arguments win: as documented."""
    monkeypatch.setenv("STREAMDEDUP_DEDUP__THRESHOLD", "0.6")
    monkeypatch.setenv("STREAMDEDUP_DEDUP__SEED", "2")
    assert Settings().dedup.threshold == 0.6
    made = Settings(dedup={"threshold": 0.9})  # type: ignore[arg-type]
    assert (made.dedup.threshold, made.dedup.seed) == (0.9, 2)


def test_a_section_object_may_be_an_override(monkeypatch: pytest.MonkeyPatch) -> None:
    """A section given whole replaces what the other layers say of it."""
    monkeypatch.setenv("STREAMDEDUP_DEDUP__SEED", "2")
    assert load_settings(dedup=DedupSettings(threshold=0.9)).dedup == DedupSettings(threshold=0.9)


@pytest.mark.parametrize("text", ["", "# nothing\n", "kafka:\n", "kafka:\n  security:\n"], ids=repr)
def test_an_empty_file_or_section_is_the_defaults(file: Path, text: str) -> None:
    """A section of which every line is commented out is no error."""
    file.write_text(text)
    assert load_settings(file) == Settings()


# Refusals


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
        pytest.param("kafka: {1: x}", "kafka", id="number as a key of a section"),
        pytest.param("kafka: 3", "kafka: ", id="section is no mapping"),
        pytest.param("- a", "must hold a mapping", id="list"),
        pytest.param("dedup: {}\ndedup: {seed: 2}", "given twice (line 1", id="section twice"),
        pytest.param("dedup:\n  seed: 1\n  seed: 2", "given twice (line 2", id="key twice"),
        pytest.param("a: [", "is no YAML", id="no YAML"),
        pytest.param("dedup: {threshold: null}", "dedup.threshold: ", id="null"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(file: Path, text: str, message: str) -> None:
    """A file with an unknown key or the wrong shape says which and where."""
    file.write_text(text)
    assert message in refusal(file)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """A missing file, a directory and a binary file are named."""
    assert "nowhere.yaml" in refusal(tmp_path / "nowhere.yaml")
    assert str(tmp_path) in refusal(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xfa")
    assert "is no YAML" in refusal(tmp_path / "binary")


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
    """A variable with our prefix that is no setting is named, with the likely one."""
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
def test_variables_that_kubernetes_or_the_tests_set_are_passed_over(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """A service called streamdedup in the namespace does not keep the worker from starting."""
    monkeypatch.setenv(name, value)
    assert load_settings() == Settings()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        pytest.param({"dedup": {"threshold": 0}}, "dedup.threshold: ", id="threshold 0"),
        pytest.param({"dedup": {"threshold": 1.1}}, "dedup.threshold: ", id="threshold 1.1"),
        pytest.param({"dedup": {"threshold": float("nan")}}, "dedup.threshold: ", id="nan"),
        pytest.param({"dedup": {"recall": 1}}, "dedup.recall: ", id="recall 1"),
        pytest.param({"dedup": {"bands": 4}}, "bands and rows belong together", id="bands alone"),
        pytest.param({"dedup": {"bands": 9, "rows": 30}}, "need 270", id="too many values"),
        pytest.param(
            {"dedup": {"num_perm": 4, "recall": 0.999999}}, "cannot reach recall", id="recall"
        ),
        pytest.param({"dedup": {"profile": "poem"}}, "there are: ", id="profile"),
        pytest.param({"topics": {"clean": "documents"}}, "five different names", id="one topic"),
        pytest.param({"topics": {"clean": "a b"}}, "topics.clean: ", id="topic with a space"),
        pytest.param({"topics": {"clean": "a\n"}}, "topics.clean: ", id="topic with a line end"),
        pytest.param({"topics": {"clean": "a" * 250}}, "topics.clean: ", id="long topic"),
        pytest.param({"records": {"text_fields": []}}, "records.text_fields: ", id="no field"),
        pytest.param({"records": {"text_fields": ["a", ""]}}, "text_fields.1: ", id="empty field"),
        pytest.param({"kafka": {"bootstrap_servers": []}}, "bootstrap_servers: ", id="no server"),
        pytest.param({"kafka": {"bootstrap_servers": "a"}}, "host:port", id="no port"),
        pytest.param({"kafka": {"bootstrap_servers": "http://a:1"}}, "host:port", id="a URL"),
        pytest.param({"kafka": {"bootstrap_servers": "a:1,"}}, "bootstrap_servers.1", id="comma"),
        pytest.param({"kafka": {"ordinal": -1}}, "kafka.ordinal: ", id="negative ordinal"),
        pytest.param({"kafka": {"group_id": ""}}, "kafka.group_id: ", id="no group"),
        pytest.param(
            {"kafka": {"transaction_timeout": "500ms"}}, "transaction_timeout: ", id="short"
        ),
        pytest.param({"drain_budget": 0}, "drain_budget: ", id="no budget"),
        pytest.param({"drain_budget": "-5s"}, "drain_budget: ", id="negative budget"),
        pytest.param({"batch": {"linger": "2h"}}, "batch.linger: ", id="long linger"),
        pytest.param({"limits": {"text_bytes": 0}}, "limits.text_bytes: ", id="no text"),
        pytest.param({"index": {"window": 0}}, "index.window: ", id="no window"),
        pytest.param({"index": {"window": "-7d"}}, "index.window: ", id="negative window"),
        pytest.param({"index": {"allowed_ahead": "-1s"}}, "allowed_ahead: ", id="negative ahead"),
        pytest.param({"index": {"delta_documents": 15}}, "delta_documents: ", id="tiny delta"),
        pytest.param({"index": {"disk_budget": "1"}}, "index.disk_budget: ", id="tiny disk"),
        pytest.param({"status": {"port": 65536}}, "status.port: ", id="port"),
        pytest.param({"log": {"level": "loud"}}, "log.level: ", id="level"),
        pytest.param(
            {"batch": {"changelog_entry_bytes": 1800}},
            "one document of these settings may take 1832",
            id="entry too small",
        ),
        pytest.param({"dedup": {"threshold": 3}, "log": {"level": "x"}}, "(and 1 more)", id="two"),
    ],
)
def test_senseless_values_are_refused(values: dict[str, Any], message: str) -> None:
    """A value out of its bounds, or two that contradict each other, are named in one line."""
    assert message in refusal(**values)


def test_a_section_that_is_no_json_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable for a whole section that is no JSON is named."""
    monkeypatch.setenv("STREAMDEDUP_KAFKA", f"x{SECRET}")
    assert '"kafka"' in refusal()
    assert SECRET not in refusal()


# Sizes, durations and lists


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("9Gi", 9 * 1024**3),
        ("512MiB", 512 * 1024**2),
        ("512 mib", 512 * 1024**2),
        ("1.5GB", 1_500_000_000),
        ("1.1GB", 1_100_000_000),
        ("1.5Gi", 1_610_612_736),
        ("2k", 2000),
        ("100B", 100),
        ("1e+06", 1_000_000),
        ("1e6", 1_000_000),
        ("6.8719476736e+10", 64 * 1024**3),
        (6.8719476736e10, 64 * 1024**3),
        (1e06, 1_000_000),
        (1048576, 1048576),
        ("0", 0),
    ],
    ids=repr,
)
def test_sizes_are_read_as_people_and_helm_write_them(text: str | float, size: int) -> None:
    """Binary and decimal units, fractions of them, and large floats are exact."""
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["-1", -1, "-5Gi", "", "x", "5i", "5iB", "1.5", 1.5, "1e999", "1e-3", "nan", "inf", True, None,
     [1], "1 000", "5Gib/s"],
    ids=repr,
)  # fmt: skip
def test_what_is_no_size_is_refused(text: Any) -> None:
    """Negative, fractional and other strange sizes say what would do."""
    with pytest.raises(ValueError, match=r"is no size|whole number"):
        parse_size(text)


@given(st.integers(0, 2**60))
def test_sizes_come_back(size: int) -> None:
    """Whatever size is written is read again."""
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("30s", 30),
        ("30 s", 30),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("7d", 7 * 86400),
        ("1.5h", 5400),
        ("90", 90),
        (90, 90),
        (0.25, 0.25),
        ("1e3", 1000),
        (dt.timedelta(seconds=3), 3),
    ],
    ids=repr,
)
def test_durations_are_read_as_people_write_them(text: Any, seconds: float) -> None:
    """Units may be combined; a bare number is seconds."""
    assert parse_duration(text) == dt.timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    ["", "x", "5 parsecs", "nan", "inf", 1e99, float("inf"), "1e99", True, None, [1]],
    ids=repr,
)
def test_what_is_no_duration_is_refused(text: Any) -> None:
    """Strange durations say what would do, and never end in another kind of error."""
    with pytest.raises(ValueError, match="is no duration"):
        parse_duration(text)


@given(st.integers(0, 10**7) | st.integers(0, 36_500 * 86_400_000))
def test_durations_come_back(milliseconds: int) -> None:
    """Whatever duration is written is read again."""
    duration = dt.timedelta(milliseconds=milliseconds)
    assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize("text", ["1d", "7d", "30d", "365d", "400d12h", "1d500ms", "90m", "24h"])
def test_durations_are_written_in_days_at_most(text: str) -> None:
    """Months and years, which are not of one length, are left to those who write them."""
    written = {"90m": "1h30m", "24h": "1d"}.get(text, text)
    assert format_duration(parse_duration(text)) == written


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
    """Lists come with commas or as JSON; an IPv6 address is no JSON."""
    monkeypatch.setenv("STREAMDEDUP_KAFKA__BOOTSTRAP_SERVERS", text)
    assert load_settings().kafka.bootstrap_servers == servers


def test_a_file_holds_a_list_or_one_text(file: Path) -> None:
    """A list of one may be written without brackets."""
    file.write_text("records: {text_fields: title}\nkafka: {bootstrap_servers: ['a:1', 'b:2']}")
    settings = load_settings(file)
    assert settings.records.text_fields == ("title",)
    assert settings.kafka.bootstrap_servers == ("a:1", "b:2")


@pytest.mark.parametrize(
    "name",
    ["records.id_field", "records.namespace_field", "dedup.bands", "kafka.security.ca_file"],
)
def test_an_empty_variable_means_not_set(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """An empty text is no path, field or number, but their absence."""
    monkeypatch.setenv("STREAMDEDUP_" + name.upper().replace(".", "__"), "")
    assert look_up(load_settings(), name) is None


# Secrets

LOGIN = {"protocol": "SASL_SSL", "sasl_username": "u"}


@pytest.mark.parametrize(
    ("security", "message"),
    [
        pytest.param({**LOGIN}, "needs sasl_username and sasl_password_file", id="no password"),
        pytest.param({**LOGIN, "sasl_password": ""}, "needs", id="empty password"),
        pytest.param(
            {"protocol": "SASL_SSL", "sasl_password": SECRET}, "needs sasl_username", id="no user"
        ),
        pytest.param(
            {**LOGIN, "sasl_password": SECRET, "sasl_password_file": "/f"}, "not both", id="both"
        ),
        pytest.param(
            {"sasl_username": "u", "sasl_password": SECRET}, "protocol PLAINTEXT", id="no SASL"
        ),
        pytest.param(
            {**LOGIN, "sasl_password": SECRET, "sasl_mechanism": "MAGIC"},
            "sasl_mechanism",
            id="magic",
        ),
        pytest.param({**LOGIN, "sasl_password": SECRET, "x": 1}, "unknown", id="unknown"),
        pytest.param({**LOGIN, "sasl_password": [SECRET]}, "sasl_password: ", id="a list"),
        pytest.param({**LOGIN, "sasl_password": MASK}, "the mask of a printed secret", id="mask"),
        pytest.param({"protocol": "SSL", "key_file": "/k"}, "belong together", id="key alone"),
        pytest.param(
            {"protocol": "SSL", "certificate_file": "/c"}, "belong together", id="certificate alone"
        ),
        pytest.param(
            {"protocol": "SSL", "key_password_file": "/k"}, "needs key_file", id="key's password"
        ),
        pytest.param({"ca_file": "/ca"}, "does not encrypt", id="certificates without TLS"),
    ],
)
def test_a_contradictory_login_is_refused_without_showing_it(
    security: dict[str, Any], message: str
) -> None:
    """What belongs together is missed, what would have no effect is refused, no secret is shown."""
    with pytest.raises(SettingsError) as caught:
        load_settings(kafka={"security": security})
    assert message in str(caught.value)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    with pytest.raises(ValidationError) as direct:
        Settings(kafka={"security": security})  # type: ignore[arg-type]
    assert SECRET not in str(direct.value)
    with pytest.raises(ValidationError) as alone:
        SecuritySettings(**security)
    assert SECRET not in str(alone.value)


@pytest.mark.parametrize(
    "text",
    [
        f"kafka: {{security: {{sasl_password: *{SECRET}}}}}",
        f"kafka: {{security: {{sasl_password: !{SECRET} x}}}}",
        f"kafka:\n  sasl_password: {SECRET}: x",
        f"kafka: {{security: {{sasl_password: {SECRET}",
    ],
    ids=["alias", "tag", "colon", "end"],
)
def test_a_broken_file_does_not_show_its_lines(file: Path, text: str) -> None:
    """What YAML says of a line that it cannot read may quote a password; we do not."""
    file.write_text(text)
    message = refusal(file)
    assert SECRET not in message
    assert "line" in message


@pytest.mark.parametrize(
    ("content", "secret"),
    [
        (b"abc", "abc"),
        (b"abc\n", "abc"),
        (b"abc\r\n", "abc"),
        (b" a b \n", " a b "),
        (b"\xc3\xa4", "ä"),
    ],
    ids=repr,
)
def test_a_password_comes_from_its_file(tmp_path: Path, content: bytes, secret: str) -> None:
    """The line end that editors add is no part of a secret; spaces are."""
    (tmp_path / "password").write_bytes(content)
    security = {**LOGIN, "sasl_password_file": tmp_path / "password"}
    assert load_settings(kafka={"security": security}).kafka.security.password() == secret


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff"], ids=repr)
def test_a_secret_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes | None) -> None:
    """A missing, empty or binary file is named."""
    path = tmp_path / "password"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match="password"):
        read_secret(path)


def test_a_password_is_masked_wherever_settings_are_shown() -> None:
    """Neither the text of the settings nor their dump shows it; password() does."""
    settings = load_settings(kafka={"security": {**LOGIN, "sasl_password": SECRET}})
    assert SECRET not in f"{settings!r} {settings} {settings.model_dump_json()}"
    assert settings.kafka.security.password() == SECRET
    assert Settings().kafka.security.password() is None


# What settings are


def test_settings_travel_to_other_processes() -> None:
    """Loaded settings are plain: they pickle, equal and hash as values do."""
    settings = load_settings(
        dedup={"threshold": 0.7}, kafka={"security": {**LOGIN, "sasl_password": SECRET}}
    )
    copy = pickle.loads(pickle.dumps(settings))  # noqa: S301 - our own bytes
    assert type(settings) is Settings
    assert copy == settings
    assert hash(copy) == hash(settings)
    assert copy != Settings()
    assert copy.kafka.security.password() == SECRET


def test_the_environment_of_another_process_does_not_change_pickled_settings() -> None:
    """A pool process uses what the parent loaded, whatever its own variables say."""
    code = (
        "import pickle, sys; settings = pickle.load(sys.stdin.buffer); "
        "print(settings.dedup.threshold)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps(load_settings(dedup={"threshold": 0.7})),
        env={**os.environ, "STREAMDEDUP_DEDUP__THRESHOLD": "0.9"},
        capture_output=True,
        check=True,
    )
    assert done.stdout.split() == [b"0.7"]


@pytest.mark.parametrize("name", ["kafka", "drain_budget", "dedup.threshold", "log.level"])
def test_settings_cannot_be_changed(name: str) -> None:
    """No setting and no section can be assigned to."""
    section, _, key = name.rpartition(".")
    owner = look_up(Settings(), section) if section else Settings()
    with pytest.raises(ValidationError, match="frozen"):
        setattr(owner, key, None)


@pytest.mark.parametrize(("ordinal", "name"), [(0, "news-0"), (12, "news-12")])
def test_the_transactional_id_is_the_group_and_the_ordinal(ordinal: int, name: str) -> None:
    """Two workers differ in it, and a restarted one has it again."""
    settings = load_settings(kafka={"group_id": "news", "ordinal": ordinal})
    assert settings.kafka.transactional_id == name


def test_explicit_bands_are_taken_as_they_are() -> None:
    """Bands and rows that are given are used; else they follow from the recall."""
    assert DedupSettings(bands=32, rows=8).banding() == (32, 8)
    assert DedupSettings().banding().candidate_probability(0.8) >= 0.99


def test_the_smallest_changelog_entry_is_accepted() -> None:
    """The bound that the refusal names is itself good."""
    assert load_settings(batch={"changelog_entry_bytes": 1960}).batch == BatchSettings(
        changelog_entry_bytes=1960
    )


# The example file


def test_the_example_file_is_the_defaults() -> None:
    """What the file teaches as defaults are the defaults."""
    assert load_settings(EXAMPLE) == Settings()


@pytest.mark.parametrize("name", LEAVES)
def test_the_example_file_shows_every_setting(name: str) -> None:
    """No setting is missing from the file that teaches them."""
    value = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    for part in name.split("."):
        assert part in value
        value = value[part]


@pytest.mark.parametrize("name", [name for name, _ in walk()])
def test_every_setting_is_documented_where_it_is_declared(name: str) -> None:
    """Each section and setting has a sentence, with a full stop."""
    fields = dict(walk())
    assert (fields[name].description or "").endswith(".")


def test_every_setting_has_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defaults given by variables, one for each setting, are the defaults."""
    values = Settings().model_dump(mode="json")
    for name in LEAVES:
        value: Any = values
        for part in name.split("."):
            value = value[part]
        text = value if isinstance(value, str) else "" if value is None else json.dumps(value)
        monkeypatch.setenv("STREAMDEDUP_" + name.upper().replace(".", "__"), text)
    assert load_settings() == Settings.model_construct()
