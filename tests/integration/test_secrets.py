"""Secrets are in no output: each output of a worker and of the commands is searched for each."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from deploy.broker.broker import Broker
from streamdedup.kafka.authentication import token_provider
from tests.support import credentials
from tests.support.access_control import set_scram_password
from tests.support.commands import CommandLine
from tests.support.corpora import documents
from tests.support.identity_provider import IdentityProvider, identity_provider
from tests.support.stage import Stage

pytestmark = pytest.mark.kafka

SECRETS = {
    "password": "recognisable+SASL/password",
    "key password": "recognisable+key/password",
    "client secret": "recognisable+client/secret",
}
"""The secrets in settings; tokens and the private key come to them."""

MOST_VERBOSE = {
    "PYTHONASYNCIODEBUG": "1",
    "PYTHONDEVMODE": "1",
    "PYTHONFAULTHANDLER": "1",
    "PYTHONWARNINGS": "always",
}
PAGES = ["/metrics", "/livez", "/readyz", "/status", "/page", "/page/state", "/page/duplicates"]


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    """Serve an identity provider that knows the recognisable client secret."""
    token_provider.cache_clear()
    with identity_provider() as running:
        running.client_secret = SECRETS["client secret"]
        yield running
    token_provider.cache_clear()


@pytest.fixture
def stages(
    secured_broker: Broker, provider: IdentityProvider, tmp_path: Path
) -> dict[str, tuple[Stage, Mapping[str, str]]]:
    """Return a stage for each way to log in with a secret, and the environment of its workers."""
    (tmp_path / "secret").write_text(SECRETS["client secret"])
    (tmp_path / "password").write_text(SECRETS["password"])
    credentials.write_certificate(
        secured_broker, tmp_path / "client", password=SECRETS["key password"]
    )
    user = secured_broker.secured.username
    asyncio.run(set_scram_password(secured_broker, user, "SCRAM-SHA-512", SECRETS["password"]))
    certificate = credentials.mutual(secured_broker, tmp_path / "client")["kafka"]["security"]
    bearer = credentials.bearer(secured_broker, provider, tmp_path / "secret")
    scram = credentials.scram(secured_broker, "SCRAM-SHA-512", user, tmp_path / "password")
    for login in (bearer, scram):
        login["kafka"]["security"] |= {
            name: certificate[name]
            for name in ("certificate_file", "key_file", "key_password_file")
        }
    del scram["kafka"]["security"]["sasl_password_file"]
    variable = {"STREAMDEDUP_KAFKA__SECURITY__SASL_PASSWORD": SECRETS["password"]}
    made: dict[str, tuple[Stage, Mapping[str, str]]] = {}
    for name, login, env in (("bearer", bearer, {}), ("scram", scram, variable)):
        stage = Stage(secured_broker.bootstrap, tmp_path / name)
        stage.create_topics()
        stage.produce_json(documents(0, 20))
        stage.configure(**login, log={"level": "debug"}, status={"page": True, "show_text": True})
        made[name] = stage, env
    return made


def spellings(secrets: Mapping[str, str]) -> dict[str, str]:
    """Return each secret as it is, and as it is sent or printed in parts of protocols."""
    found: dict[str, str] = {}
    for name, secret in secrets.items():
        encoded = base64.b64encode(secret.encode()).decode()
        found |= {
            name: secret,
            f"{name} in a URL": quote(secret, ""),
            f"{name} in base64": encoded,
            f"{name} in JSON": json.dumps(secret)[1:-1].replace("/", "\\/"),
        }
    return found


def every_secret(provider: IdentityProvider, folder: Path) -> dict[str, str]:
    """Return all spellings of all secrets that were used so far."""
    key = (folder / "client" / "tls.key").read_text().splitlines()
    tokens = {f"token {number}": token for number, token in enumerate(provider.issued)}
    login = f"{quote(provider.client_id, '')}:{quote(provider.client_secret, '')}"
    header = base64.b64encode(login.encode()).decode()
    others = {"private key": key[len(key) // 2], "Authorization": header}
    return spellings({**SECRETS, **tokens, **others})


def assert_hidden(outputs: Mapping[str, str], secrets: Mapping[str, str]) -> None:
    """Check that no output has a secret."""
    shown = [
        f"{secret} in {name}"
        for name, output in outputs.items()
        for secret, value in secrets.items()
        if value in output
    ]
    assert not shown, shown


@pytest.mark.parametrize("name", ["bearer", "scram"])
def test_a_worker_shows_no_secret(
    stages: dict[str, tuple[Stage, Mapping[str, str]]],
    provider: IdentityProvider,
    tmp_path: Path,
    name: str,
) -> None:
    """Neither its log with every debug mode, nor its pages, nor the stacks of a crash."""
    stage, env = stages[name]
    outputs: dict[str, str] = {}
    with stage.start_worker(env={**env, **MOST_VERBOSE}) as worker:
        stage.wait_for(20, worker)
        outputs |= {path: worker.get(path)[1] for path in PAGES}
        worker.process.send_signal(signal.SIGABRT)
        worker.wait()
        outputs["stacks"] = worker.log()
    assert "Current thread" in outputs["stacks"]
    stage.produce_json(documents(20, 40))
    with stage.start_worker(
        env={**env, **MOST_VERBOSE}, module="tests.support.crashing"
    ) as crashing:
        assert crashing.wait() == 1
        outputs["traceback"] = crashing.log()
    assert "ArithmeticError: a bug" in outputs["traceback"]
    assert_hidden(outputs, every_secret(provider, tmp_path))


@pytest.mark.parametrize("name", ["bearer", "scram"])
def test_commands_and_errors_show_no_secret(
    stages: dict[str, tuple[Stage, Mapping[str, str]]],
    provider: IdentityProvider,
    tmp_path: Path,
    name: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Settings as they are printed and checked, and the line of each failure."""
    stage, env = stages[name]
    for variable, value in env.items():
        monkeypatch.setenv(variable, value)
    command = CommandLine(capfd)
    config = ["--config", stage.config]
    outputs: dict[str, Any] = {
        "show": command.run("config", "show", *config),
        "check": command.run("config", "check", *config),
        "check as JSON": command.run("config", "check", "--json", *config),
        "dlq": command.run("dlq", "list", *config),
    }
    assert [code for code, _, _ in outputs.values()] == [0, 0, 0, 0]
    login = stage.overrides["kafka"]["security"]
    mistakes = {
        "user": {"sasl_username": "stranger"},
        "authority": {"ca_file": str(stage.config)},
        "key": {"key_file": login["certificate_file"]},
        "key password": {"key_password_file": login["ca_file"]},
        "unknown setting": {"sasl_pasword": SECRETS["password"]},
        "both passwords": {"sasl_password": SECRETS["password"], "sasl_password_file": "/x"},
        "password as a list": {"sasl_password": [SECRETS["password"]]},
        "protocol": {"protocol": "SSL"},
        "secret in a URL": {"token_url": f"https://u:{quote(SECRETS['password'])}@host/"},
    }
    for mistake, change in mistakes.items():
        token_provider.cache_clear()
        stage.configure(kafka={"security": login | change})
        outputs[mistake] = command.run("dlq", "list", *config)
        # A variable with the password overrides the one in the file.
        is_overridden = bool(env) and mistake == "password as a list"
        assert outputs[mistake][0] in ((0,) if is_overridden else (3, 6)), outputs[mistake]
    printed = {what: out + err for what, (_, out, err) in outputs.items()}
    assert_hidden(printed, every_secret(provider, tmp_path))


def test_the_search_finds_a_secret(provider: IdentityProvider, tmp_path: Path) -> None:
    """A secret in an output fails the check; else the tests above could not fail."""
    (tmp_path / "client").mkdir()
    (tmp_path / "client" / "tls.key").write_text("a\nkey\nz")
    secrets = every_secret(provider, tmp_path)
    for value in secrets.values():
        with pytest.raises(AssertionError, match="in a log"):
            assert_hidden({"a log": f"before {value} after"}, secrets)
