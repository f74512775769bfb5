"""Kerberos without its package; .ci/kerberos checks the login against a real KDC."""

from __future__ import annotations

import pytest
from aiokafka import conn

from streamdedup.errors import SettingsError
from streamdedup.kafka.connection import connection_options
from streamdedup.settings.kafka import KafkaSettings, SecuritySettings


def test_without_the_package_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The extra is optional."""
    monkeypatch.setattr(conn, "gssapi", None)
    security = SecuritySettings(protocol="SASL_PLAINTEXT", sasl_mechanism="GSSAPI")
    with pytest.raises(SettingsError, match=r"pip install 'gssapi[<>=]"):
        connection_options(KafkaSettings(security=security))


def test_the_service_name_reaches_the_client() -> None:
    """Other mechanisms ignore it."""
    options = connection_options(
        KafkaSettings(security=SecuritySettings(kerberos_service_name="broker"))
    )
    assert options["sasl_kerberos_service_name"] == "broker"
    assert options["sasl_mechanism"] == "PLAIN"
