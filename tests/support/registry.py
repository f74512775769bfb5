"""*Blocking.* A real schema registry: Apicurio, from Maven Central, with a login.

:class:`Front` stands before it, and can be away, refuse, ask for a token or speak TLS.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any, cast

import fastavro

from deploy.broker import watchdog
from deploy.broker.jars import cache_folder
from deploy.broker.process import find_java
from tests.support.patience import wait_until

_VERSION = "3.0.9"
"""The last release for Java 17."""
_ARTIFACT = f"io.apicurio:apicurio-registry-app:{_VERSION}:tar.gz:all"
_PATH = "/apis/ccompat/v7"
USER, PASSWORD = "alice", "secret: ä"
_KIND = "application/vnd.schemaregistry.v1+json"


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
            headers={"Content-Type": _KIND, "Authorization": f"Basic {login}"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return json.load(answer)


@contextlib.contextmanager
def running_registry() -> Iterator[SchemaRegistry]:
    """Start a registry in memory, and stop it at the end."""
    folder = _obtain()
    port, management = _free_ports()
    options = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": port,
        "quarkus.management.host": "127.0.0.1",
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
    url = f"http://127.0.0.1:{port}{_PATH}"
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile() as log:
        # The watchdog ends it when the tests are killed.
        command = [sys.executable, "-I", watchdog.__file__, "process", str(os.getpid()), scratch]
        process = subprocess.Popen(
            [*command, *java, "-jar", str(jar)],
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=scratch,
            start_new_session=True,
        )
        pid = int(cast("IO[bytes]", process.stdout).readline())
        registry = SchemaRegistry(url)
        try:
            wait_until(lambda: _answers(registry), "the schema registry to answer", 120)
            yield registry
        finally:
            os.kill(pid, signal.SIGTERM)
            process.communicate()


def _obtain() -> Path:
    """Return the folder of the registry; Maven downloads it once."""
    folder = cache_folder() / f"apicurio-{_VERSION}"
    if folder.exists():
        return folder
    maven = shutil.which("mvn")
    assert maven is not None, "Maven is missing: apt-get install maven"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".apicurio-") as scratch:
        command = [maven, "-B", "-q", "dependency:copy", f"-Dartifact={_ARTIFACT}"]
        subprocess.run([*command, f"-DoutputDirectory={scratch}"], check=True, timeout=600)
        unpacked = Path(scratch) / "unpacked"
        with tarfile.open(next(Path(scratch).glob("*.tar.gz"))) as archive:
            archive.extractall(unpacked, filter="data")
        with contextlib.suppress(OSError):  # another run was faster
            unpacked.rename(folder)
    return folder


def _answers(registry: SchemaRegistry) -> bool:
    with contextlib.suppress(OSError):
        return bool(registry.call("GET", "/schemas/types"))
    return False


def _free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        for each in (first, second):
            each.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


@dataclass
class Front:
    """A gate before the registry.

    Attributes:
        registry: what is behind the gate.
        url: the gate's address.
        away: whether it closes every connection without an answer.
        status: the status of every answer; None for those of the registry.
        token: the bearer token that it asks for; None if the registry asks for its own login.
        requests: the paths that were asked for, in order.
    """

    registry: SchemaRegistry
    url: str = ""
    away: bool = False
    status: int | None = None
    token: str | None = None
    requests: list[str] = field(default_factory=list)

    def answer(self, method: str, path: str, login: str, body: bytes | None) -> tuple[int, bytes]:
        """Return status and body for a request."""
        if self.status is not None:
            return self.status, b"{}"
        if self.token is not None:
            if login != f"Bearer {self.token}":
                return 401, b'{"error_code": 40101, "message": "Unauthorized"}'
            login = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        request = urllib.request.Request(  # noqa: S310 - an address of the test
            self.registry.url.removesuffix(_PATH) + path,
            data=body,
            method=method,
            headers={"Authorization": login, "Content-Type": _KIND},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()


@contextlib.contextmanager
def front(registry: SchemaRegistry, certificate: ssl.SSLContext | None = None) -> Iterator[Front]:
    """Serve a gate, with TLS if it has a certificate."""
    gate = Front(registry)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._serve(None)

        def do_POST(self) -> None:
            self._serve(self.rfile.read(int(self.headers["Content-Length"])))

        def _serve(self, body: bytes | None) -> None:
            gate.requests.append(self.path.removeprefix(_PATH))
            if gate.away:
                self.close_connection = True
                return
            login = self.headers["Authorization"] or ""
            status, answer = gate.answer(self.command, self.path, login, body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if certificate is not None:
            server.socket = certificate.wrap_socket(server.socket, server_side=True)
        scheme = "http" if certificate is None else "https"
        gate.url = f"{scheme}://127.0.0.1:{server.server_port}{_PATH}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield gate
        finally:
            server.shutdown()
            thread.join()


def avro(schema_id: int, schema: dict[str, Any], content: dict[str, Any]) -> bytes:
    """Return a value in Avro, in the wire format."""
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), content)
    return prefix(schema_id) + buffer.getvalue()


def prefix(schema_id: int) -> bytes:
    """Return the wire format's prefix of a value."""
    return struct.pack(">bI", 0, schema_id)
