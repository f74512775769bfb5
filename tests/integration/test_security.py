"""Encryption and login: each way that brokers offer works, and each mistake is one line."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trustme

from deploy.broker.broker import Broker
from streamdedup.kafka.authentication import token_provider
from tests.support import credentials
from tests.support.access_control import MECHANISMS, set_scram_password
from tests.support.commands import CommandLine
from tests.support.corpora import documents
from tests.support.identity_provider import IdentityProvider, identity_provider
from tests.support.oracle import assert_undisturbed
from tests.support.patience import wait_until
from tests.support.stage import Stage
from tests.support.workers import WorkerProcess

pytestmark = [pytest.mark.kafka, pytest.mark.long]

PASSWORD = "the SCRAM password"  # noqa: S105 - of the test's broker

Change = Callable[[Any], None]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> CommandLine:
    """Return the command line."""
    return CommandLine(capfd)


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    """Serve an identity provider; no token of another test is remembered."""
    token_provider.cache_clear()
    with identity_provider() as running:
        yield running
    token_provider.cache_clear()


def logins(broker: Broker, provider: IdentityProvider, folder: Path) -> dict[str, Any]:
    """Return the settings of each login, with correct credentials in files of a folder."""
    folder.mkdir(exist_ok=True)
    (folder / "password").write_text(f"{PASSWORD}\n")
    (folder / "secret").write_text(provider.client_secret)
    credentials.write_certificate(broker, folder)
    user = broker.secured.username
    for mechanism in MECHANISMS:
        asyncio.run(set_scram_password(broker, user, mechanism, PASSWORD))
    return {
        "mutual": credentials.mutual(broker, folder),
        "bearer": credentials.bearer(broker, provider, folder / "secret"),
        **{name: credentials.scram(broker, name, user, folder / "password") for name in MECHANISMS},
    }


def test_every_login_lets_records_pass(
    secured_broker: Broker, provider: IdentityProvider, tmp_path: Path
) -> None:
    """SCRAM-SHA-256 and -512 and OAUTHBEARER over TLS, and mutual TLS with an encrypted key."""
    with ExitStack() as running:
        workers: dict[str, tuple[Stage, WorkerProcess]] = {}
        for name, settings in logins(secured_broker, provider, tmp_path).items():
            stage = Stage(secured_broker.bootstrap, tmp_path / name)
            stage.create_topics()
            stage.produce_json(documents(0, 20))
            stage.configure(**settings)
            workers[name] = stage, running.enter_context(stage.start_worker())
        for stage, worker in workers.values():
            stage.wait_for(20, worker)
            worker.drain()
            assert_undisturbed(stage)
    assert provider.scopes == ["kafka"]


def changed(**settings: Any) -> Change:
    """Return a function that changes settings of the login; None removes one."""

    def change(login: Any) -> None:
        security = login["kafka"]["security"]
        security.update(settings)
        for name in [name for name, value in settings.items() if value is None]:
            del security[name]

    return change


MISTAKES = {
    "wrong password": ("SCRAM-SHA-512", changed(sasl_password_file="wrong"), 6, "SCRAM-SHA-512"),
    "wrong user": ("SCRAM-SHA-256", changed(sasl_username="stranger"), 6, "invalid credentials"),
    "wrong mechanism": ("SCRAM-SHA-256", changed(sasl_mechanism="PLAIN"), 6, "UnsupportedSasl"),
    "no password file": ("SCRAM-SHA-256", changed(sasl_password_file="none"), 3, "none"),
    "wrong CA": ("SCRAM-SHA-512", changed(ca_file="other-ca.pem"), 6, "kafka.security.ca_file"),
    "no CA file": ("mutual", changed(ca_file="none"), 3, "kafka.security.ca_file none"),
    "foreign certificate": (
        "mutual",
        changed(certificate_file="foreign/tls.crt", key_file="foreign/tls.key"),
        6,
        "kafka.security.certificate_file",
    ),
    "expired certificate": (
        "mutual",
        changed(certificate_file="expired/tls.crt", key_file="expired/tls.key"),
        6,
        "has not expired",
    ),
    "no certificate": (
        "mutual",
        changed(certificate_file=None, key_file=None, key_password_file=None),
        6,
        "certificate_file is set",
    ),
    "other key": ("mutual", changed(key_file="expired/tls.key"), 3, "are a pair"),
    "wrong key password": ("mutual", changed(key_password_file="wrong"), 3, "key_password_file"),
    "no key password": ("mutual", changed(key_password_file=None), 3, "key_password_file"),
    "wrong secret": ("bearer", changed(sasl_password_file="wrong"), 6, "401 invalid_client"),
    "wrong client": (
        "bearer",
        changed(sasl_username="stranger"),
        6,
        "kafka.security.sasl_username",
    ),
    "wrong token CA": ("bearer", changed(token_ca_file="none"), 6, "cannot request a token"),
    "no provider": ("bearer", changed(token_url="http://127.0.0.1:9/"), 7, "does not answer"),
}


@pytest.fixture
def refused(
    secured_broker: Broker,
    provider: IdentityProvider,
    tmp_path: Path,
    command: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., str]:
    """Return a function that runs a command with a mistake, and returns its line."""
    (tmp_path / "wrong").write_text("wrong")
    (tmp_path / "other-ca.pem").write_bytes(secured_broker.secured.other_ca_pem_path.read_bytes())
    credentials.write_certificate(
        secured_broker, tmp_path / "expired", lifetime=-dt.timedelta(hours=1)
    )
    credentials.write_certificate(secured_broker, tmp_path / "foreign", authority=trustme.CA())
    right = logins(secured_broker, provider, tmp_path)
    monkeypatch.chdir(tmp_path)

    def run(name: str, change: Change, code: int) -> str:
        stage = Stage(secured_broker.bootstrap, tmp_path / "stage")
        change(right[name])
        stage.configure(**right[name])
        return command(code, "topics", "create", "--config", stage.config)

    return run


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(refused: Callable[..., str], mistake: str) -> None:
    """The line names the setting or the broker's reason; the exit code says who must act."""
    name, change, code, fragment = MISTAKES[mistake]
    line = refused(name, change, code)
    assert fragment in line
    assert PASSWORD not in line


def test_an_expired_certificate_of_the_broker(
    secured_broker: Broker, refused: Callable[..., str]
) -> None:
    """The line says that the broker's certificate has expired."""

    def change(login: Any) -> None:
        login["kafka"]["bootstrap_servers"] = secured_broker.secured.expired_bootstrap

    assert "certificate has expired" in refused("mutual", change, 6)


ANSWERS = {
    "busy": ((503, b"later"), 7, "answers 503"),
    "limited": ((429, b"later"), 7, "answers 429"),
    "moved": ((302, b""), 6, "answers 302"),
    "not JSON": ((200, b"<html>"), 6, "token_url"),
    "no object": ((200, b'["access_token"]'), 6, "holds no token"),
    "no token": ((200, b'{"access_token": 1}'), 6, "holds no token"),
    "control characters": ((200, b'{"access_token": "a\\u0001b"}'), 6, "characters"),
    "strange error": ((400, b'{"error": "a secret\\nvalue"}'), 6, "answers 400; fix"),
    "huge": ((200, b" " * 10_000_000), 6, "holds no token"),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_answers_of_a_token_endpoint(
    refused: Callable[..., str], provider: IdentityProvider, answer: str
) -> None:
    """An answer without a token is one line, without the contents of the answer."""
    provider.answer, code, fragment = ANSWERS[answer]
    line = refused("bearer", lambda _: None, code)
    assert fragment in line
    assert "secret" not in line.replace("client id and secret", "")


def test_an_expired_token_is_refused(
    refused: Callable[..., str], provider: IdentityProvider
) -> None:
    """The line has the broker's reason, and not the token."""
    provider.expired = True
    line = refused("bearer", lambda _: None, 6)
    assert "invalid_token" in line
    assert provider.issued
    assert not any(token in line for token in provider.issued)


@pytest.fixture
def bearer(secured_broker: Broker, provider: IdentityProvider, tmp_path: Path) -> Stage:
    """Return a stage whose workers log in with tokens."""
    stage = Stage(secured_broker.bootstrap, tmp_path / "stage")
    stage.create_topics()
    stage.configure(**logins(secured_broker, provider, tmp_path)["bearer"])
    return stage


def produce_slowly(stage: Stage, worker: WorkerProcess, parts: int) -> None:
    """Append 20 documents at a time, each after the ones before were judged."""
    for part in range(parts):
        stage.produce_json(documents(part * 20, part * 20 + 20))
        stage.wait_for(part * 20 + 20, worker)


def test_tokens_are_replaced_before_they_expire(bearer: Stage, provider: IdentityProvider) -> None:
    """A worker outlives its tokens, although the broker closes connections with them.

    It has the lifetime from the provider, although some write a string.
    """
    provider.lifetime_s, provider.quotes_lifetime = 4.0, True
    with bearer.start_worker() as worker:
        worker.wait_until_ready()
        before = len(provider.issued)
        done = 0
        while len(provider.issued) < before + 3:
            bearer.produce_json(documents(done, done + 20))
            done += 20
            bearer.wait_for(done, worker)
        worker.drain()
    assert_undisturbed(bearer)
    assert not any(token in worker.log() for token in provider.issued)


def test_a_provider_that_is_away_is_waited_for(bearer: Stage, provider: IdentityProvider) -> None:
    """The worker waits for its token as for a broker, and loses nothing."""
    provider.lifetime_s = 3.0
    with bearer.start_worker() as worker:
        produce_slowly(bearer, worker, 1)
        provider.answer = 503, b""
        wait_until(lambda: "answers 503" in worker.get("/readyz")[1], "the worker to wait")
        bearer.produce_json(documents(20, 40))
        provider.answer = None
        bearer.wait_for(40, worker)
        worker.drain()
    assert_undisturbed(bearer)


def test_a_revoked_client_ends_the_worker(bearer: Stage, provider: IdentityProvider) -> None:
    """When the provider refuses the next token, the worker ends with 6; a restart continues."""
    provider.lifetime_s = 3.0
    with bearer.start_worker() as worker:
        produce_slowly(bearer, worker, 1)
        provider.answer = 401, b'{"error": "invalid_client"}'
        bearer.produce_json(documents(20, 40))
        worker.assert_ends(6, "401 invalid_client")
    provider.answer = None
    bearer.run_until_judged(40)
    assert_undisturbed(bearer)
