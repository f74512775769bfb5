"""*Blocking.* A real schema registry for tests and benchmarks: Apicurio, with a login.

Maven downloads it once into the user's cache folder; it runs with the broker's Java.
"""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.broker.address import LOOPBACK, choose_ports
from deploy.broker.errors import BrokerUnobtainable
from deploy.broker.jars import REMEDY, cache_folder
from deploy.broker.process import find_java
from deploy.processes import Child

_VERSION = "3.0.9"
"""The last release for Java 17."""
_ARTIFACT = f"io.apicurio:apicurio-registry-app:{_VERSION}:tar.gz:all"
PATH = "/apis/ccompat/v7"
USER, PASSWORD = "alice", "secret: \u00e4"
_START_S = 120.0
KIND = "application/vnd.schemaregistry.v1+json"


@dataclass(frozen=True)
class Reference:
    """A schema that another one refers to."""

    name: str
    subject: str
    version: int = 1


@dataclass(frozen=True)
class SchemaRegistry:
    """A registry that runs.

    Attributes:
        url: its address, without a login.
    """

    url: str

    def settings(self, **changes: Any) -> dict[str, Any]:
        """Return the section ``registry`` of the settings."""
        return {"urls": [self.url], "username": USER, "password": PASSWORD} | changes

    def register(
        self,
        subject: str,
        schema: str | dict[str, Any],
        kind: str = "AVRO",
        references: Sequence[Reference] = (),
    ) -> int:
        """Register a schema, and return its id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        body = {
            "schema": text,
            "schemaType": kind,
            "references": [vars(reference) for reference in references],
        }
        return int(self.call("POST", f"/subjects/{subject}/versions", body)["id"])

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request, and return the answer."""
        login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        request = urllib.request.Request(  # noqa: S310 - an address of the test
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": KIND, "Authorization": f"Basic {login}"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return json.load(answer)


@contextlib.contextmanager
def running_registry() -> Iterator[SchemaRegistry]:
    """Start a registry in memory, and stop it at the end."""
    folder = _obtain()
    port, management = choose_ports(2)
    options = {
        "quarkus.http.host": LOOPBACK,
        "quarkus.http.port": port,
        "quarkus.management.host": LOOPBACK,
        "quarkus.management.port": management,
        "quarkus.http.auth.basic": "true",
        "quarkus.security.users.embedded.enabled": "true",
        "quarkus.security.users.embedded.plain-text": "true",
        f"quarkus.security.users.embedded.users.{USER}": PASSWORD,
        f"quarkus.security.users.embedded.roles.{USER}": "sr-admin",
        "quarkus.http.auth.permission.apis.paths": "/apis/*",
        "quarkus.http.auth.permission.apis.policy": "authenticated",
    }
    jar = next(folder.glob("*-runner.jar"))
    java = [find_java(), "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    java += [f"-D{name}={value}" for name, value in options.items()]
    url = f"http://{LOOPBACK}:{port}{PATH}"
    registry = SchemaRegistry(url)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with Child([*java, "-jar", str(jar)], folder / "log", folder=folder) as child:
            child.wait_for(lambda: _answers(registry), _START_S, "the start of the registry")
            yield registry


def _obtain() -> Path:
    """Return the folder of the registry; Maven downloads it once."""
    folder = cache_folder() / f"apicurio-{_VERSION}"
    if folder.exists():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise BrokerUnobtainable(f"Maven is missing, which downloads the registry: {REMEDY}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".apicurio-") as scratch:
        command = [maven, "-B", "-q", "dependency:copy", f"-Dartifact={_ARTIFACT}"]
        subprocess.run([*command, f"-DoutputDirectory={scratch}"], check=True, timeout=600)
        unpacked = Path(scratch) / "unpacked"
        with tarfile.open(next(Path(scratch).glob("*.tar.gz"))) as archive:
            # Before Python 3.11.4 extractall() has no filter.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(unpacked)  # noqa: S202 - filtered
        with contextlib.suppress(OSError):  # another run was faster
            unpacked.rename(folder)
    return folder


def _answers(registry: SchemaRegistry) -> bool:
    with contextlib.suppress(OSError):
        return bool(registry.call("GET", "/schemas/types"))
    return False
