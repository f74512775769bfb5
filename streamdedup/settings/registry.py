"""*Blocking* (reads secrets from their files). Settings of the schema registry."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from pydantic import Field, SecretStr, field_validator, model_validator

from streamdedup.settings.secrets import read_secret, refuse_mask
from streamdedup.settings.section import HOUR, SECOND, Section
from streamdedup.settings.units import Duration, UrlList


class RegistrySettings(Section):
    """The schema registry, for records.format registry and output.duplicates_format avro."""

    urls: UrlList = ()
    """URLs of one registry with Confluent's API; the first that answers is used. Needs the extra
    `registry`."""
    username: str = ""
    """User name, for HTTP basic authentication."""
    password: SecretStr | None = None
    """Password. Prefer password_file."""
    password_file: Path | None = None
    """File with the password. A line break at its end is ignored."""
    token_file: Path | None = None
    """File with a bearer token, instead of a password. It is read for each request."""
    ca_file: Path | None = None
    """PEM file of the registry's certificate authorities. Default: those of the package
    certifi."""
    certificate_file: Path | None = None
    """PEM file of a client certificate, for mutual TLS."""
    key_file: Path | None = None
    """PEM file of its private key."""
    timeout: Duration = Field(default=dt.timedelta(seconds=10), ge=SECOND, le=HOUR)
    """Longest time of one request."""

    @field_validator("password")
    @classmethod
    def _refuse_mask(cls, value: SecretStr | None) -> SecretStr | None:
        return refuse_mask(value)

    @model_validator(mode="after")
    def _check(self) -> RegistrySettings:
        passwords = bool(self.password) + (self.password_file is not None)
        if passwords > 1:
            raise ValueError("password and password_file are both set; remove one")
        if bool(self.username) != bool(passwords):
            raise ValueError("a login needs username and password_file")
        if self.token_file is not None and self.username:
            raise ValueError("username and token_file are both set; remove one")
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("only one of certificate_file and key_file is set; set both")
        others = self.model_fields_set - {"urls", "timeout"}
        if not self.urls and any(getattr(self, name) for name in others):
            raise ValueError("urls is not set, so that the other settings have no effect")
        return self

    def login(self) -> str | None:
        """Return ``username:password``; None without a login.

        Raises:
            SettingsError: the file of the password cannot be read.
        """
        if not self.username:
            return None
        if self.password_file is not None:
            return f"{self.username}:{read_secret(self.password_file)}"
        return f"{self.username}:{self.password.get_secret_value() if self.password else ''}"
