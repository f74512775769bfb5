"""*Blocking.* A gate before the schema registry, and values in its wire format.

The gate can be away, refuse, ask for a token or speak TLS.
"""

from __future__ import annotations

import base64
import contextlib
import io
import ssl
import struct
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

import fastavro

from deploy.registry import KIND, PASSWORD, PATH, USER, SchemaRegistry
from tests.support.serving import serving


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
            self.registry.url.removesuffix(PATH) + path,
            data=body,
            method=method,
            headers={"Authorization": login, "Content-Type": KIND},
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
            gate.requests.append(self.path.removeprefix(PATH))
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

    with serving(Handler, certificate) as address:
        gate.url = address + PATH
        yield gate


def avro(schema_id: int, schema: dict[str, Any], content: dict[str, Any]) -> bytes:
    """Return a value in Avro, in the wire format."""
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), content)
    return prefix(schema_id) + buffer.getvalue()


def prefix(schema_id: int) -> bytes:
    """Return the wire format's prefix of a value."""
    return struct.pack(">bI", 0, schema_id)
