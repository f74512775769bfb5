"""The sections: bounds, immutability, and the files that document them."""

from __future__ import annotations

import datetime as dt
import json
import os
import pickle
import subprocess
import sys
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from streamdedup.settings.dedup import DedupSettings
from streamdedup.settings.load import load_settings, walk
from streamdedup.settings.sections import BatchSettings, Settings
from streamdedup.settings.units import Section
from tests.settings.loading import LOGIN, SECRET, look_up, refusal
from tests.support.paths import ROOT

EXAMPLE = ROOT / "config" / "streamdedup.yaml"
LEAVES = [name for name, field in walk() if not isinstance(field.default, Section)]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        pytest.param({"dedup": {"threshold": 0}}, "dedup.threshold: ", id="threshold 0"),
        pytest.param({"dedup": {"threshold": 1.1}}, "dedup.threshold: ", id="threshold 1.1"),
        pytest.param({"dedup": {"threshold": float("nan")}}, "dedup.threshold: ", id="nan"),
        pytest.param({"dedup": {"recall": 1}}, "dedup.recall: ", id="recall 1"),
        pytest.param(
            {"dedup": {"bands": 4}}, "only one of bands and rows is set", id="bands alone"
        ),
        pytest.param({"dedup": {"bands": 9, "rows": 30}}, "need 270", id="too many values"),
        pytest.param(
            {"dedup": {"num_perm": 4, "recall": 0.999999}}, "cannot reach recall", id="recall"
        ),
        pytest.param({"dedup": {"profile": "poem"}}, "expected one of: ", id="profile"),
        pytest.param(
            {"output": {"route": "annotate", "headers": "none"}},
            "set headers: compact or full",
            id="annotations without headers",
        ),
        pytest.param({"topics": {"clean": "documents"}}, "a name of its own", id="one topic"),
        pytest.param({"topics": {"clean": "a b"}}, "topics.clean: ", id="topic with a space"),
        pytest.param({"topics": {"clean": "a\n"}}, "topics.clean: ", id="topic with a line end"),
        pytest.param({"topics": {"clean": "a" * 250}}, "topics.clean: ", id="long topic"),
        pytest.param({"records": {"text_fields": []}}, "records.text_fields: ", id="no field"),
        pytest.param({"records": {"text_fields": ["a", ""]}}, "text_fields.1: ", id="empty field"),
        pytest.param({"kafka": {"bootstrap_servers": []}}, "bootstrap_servers: ", id="no server"),
        pytest.param({"kafka": {"bootstrap_servers": "a"}}, "host:port", id="no port"),
        pytest.param({"kafka": {"bootstrap_servers": "http://a:1"}}, "host:port", id="a URL"),
        pytest.param({"kafka": {"bootstrap_servers": "a:1,"}}, "bootstrap_servers.1", id="comma"),
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
            "one document may take 1832",
            id="entry too small",
        ),
        pytest.param({"dedup": {"threshold": 3}, "log": {"level": "x"}}, "(and 1 more)", id="two"),
    ],
)
def test_invalid_values_are_refused(values: dict[str, Any], message: str) -> None:
    """A value out of bounds, or a contradiction between two, is named in one line."""
    assert message in refusal(**values)


def test_settings_can_be_pickled() -> None:
    """Loaded settings are values: they can be pickled, compared and hashed."""
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
    """A pool process uses the settings of its parent, not its own variables."""
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
def test_settings_are_immutable(name: str) -> None:
    """Assigning to a setting or a section fails."""
    section, _, key = name.rpartition(".")
    owner = look_up(Settings(), section) if section else Settings()
    with pytest.raises(ValidationError, match="frozen"):
        setattr(owner, key, None)


@pytest.mark.parametrize("group", ["news", "others"])
def test_the_transactional_id_follows_from_the_changelog_alone(group: str) -> None:
    """Workers of one changelog have the same id, whatever group they commit to."""
    settings = load_settings(kafka={"group_id": group}, topics={"changelog": "log"})
    assert settings.topics.transactional_id == "log"


def test_explicit_bands_are_used() -> None:
    """Bands and rows are used if they are set, else computed from the recall."""
    assert DedupSettings(bands=32, rows=8).banding() == (32, 8)
    assert DedupSettings().banding().candidate_probability(0.8) >= 0.99


def test_the_smallest_changelog_entry_is_accepted() -> None:
    """The bound that the message names is accepted."""
    assert load_settings(batch={"changelog_entry_bytes": 1960}).batch == BatchSettings(
        changelog_entry_bytes=1960
    )


def test_the_example_file_holds_the_defaults() -> None:
    """The values in the example file are the defaults."""
    assert load_settings(EXAMPLE) == Settings()


@pytest.mark.parametrize("name", LEAVES)
def test_the_example_file_shows_every_setting(name: str) -> None:
    """The example file contains every setting."""
    value = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    for part in name.split("."):
        assert part in value
        value = value[part]


@pytest.mark.parametrize("name", [name for name, _ in walk()])
def test_every_setting_is_documented_where_it_is_declared(name: str) -> None:
    """Each section and setting has a description that ends with a full stop."""
    fields = dict(walk())
    assert (fields[name].description or "").endswith(".")


def test_every_setting_has_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Setting every default by its variable gives the defaults."""
    values = Settings().model_dump(mode="json")
    for name in LEAVES:
        value: Any = values
        for part in name.split("."):
            value = value[part]
        text = value if isinstance(value, str) else "" if value is None else json.dumps(value)
        monkeypatch.setenv("STREAMDEDUP_" + name.upper().replace(".", "__"), text)
    assert load_settings() == Settings.model_construct()


@pytest.mark.parametrize("module", ["", ".load", ".secrets", ".sections", ".units"])
def test_settings_load_no_numba(module: str) -> None:
    """A command that only reads settings does not wait for numba and LLVM."""
    code = f"import sys, streamdedup.settings{module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert {"numba", "llvmlite"}.isdisjoint(done.stdout.split())


def test_how_early_event_times_may_be() -> None:
    """As far ahead as the window is long, unless a setting says otherwise."""
    window = {"window": "7d", "allowed_lateness": "1d"}
    assert load_settings(index=window).index.ahead() == dt.timedelta(days=7)
    nearer = load_settings(index={**window, "allowed_ahead": "1h"}).index
    assert nearer.ahead() == dt.timedelta(hours=1)


@pytest.mark.parametrize(("processors", "processes"), [(1, 1), (2, 1), (3, 2), (8, 7)])
def test_a_processor_is_left_to_the_worker_itself(
    monkeypatch: pytest.MonkeyPatch, processors: int, processes: int
) -> None:
    """The pool has one process less than there are processors, unless a setting says otherwise."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)))
    assert load_settings().pool.size() == processes
    assert load_settings(pool={"workers": 5}).pool.size() == 5


def test_avro_and_its_schemas_need_each_other() -> None:
    """One without the other is a mistake."""
    message = "format avro and schema_files need each other"
    assert message in refusal(records={"format": "avro"})
    assert message in refusal(records={"format": "json", "schema_files": ["a.avsc"]})
    schemas = {"format": "avro", "schema_files": ["a.avsc"]}
    assert load_settings(records=schemas).records.format == "avro"
