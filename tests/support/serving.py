"""*Blocking.* Servers of HTTP on a loopback port, in a thread."""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextlib.contextmanager
def serving(
    handler: type[BaseHTTPRequestHandler], certificate: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Serve requests, with TLS if there is a certificate; yield the address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if certificate is not None:
            server.socket = certificate.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http{'s' if certificate else ''}://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
