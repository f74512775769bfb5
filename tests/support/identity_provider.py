"""*Blocking.* An OIDC provider on a loopback port: its token endpoint, with unsigned tokens.

Kafka's own validator for tests accepts them (OAuthBearerUnsecuredValidatorCallbackHandler).
"""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote

from tests.support.serving import serving


def unsigned_token(user: str, lifetime_s: float) -> str:
    """Return a token without a signature (RFC 7515, appendix A.5)."""
    now_s = time.time()
    claims = {"sub": user, "iat": int(now_s) - 1, "exp": now_s + lifetime_s, "scope": []}
    return ".".join(_encoded(part) for part in ({"alg": "none"}, claims)) + "."


def _encoded(part: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


@dataclass
class IdentityProvider:
    """What the provider answers, and what it was asked.

    Attributes:
        client_id: the client that gets tokens.
        client_secret: its secret.
        user: the subject of the tokens.
        lifetime_s: the lifetime of the tokens.
        quotes_lifetime: whether it writes the lifetime as a string.
        expired: whether the tokens are expired when they are issued.
        answer: status and body of every answer, instead of a token.
        url: the token endpoint.
        issued: the tokens, in order.
        scopes: the requested scopes, in order.
    """

    client_id: str = "the client"
    client_secret: str = "s:cr%t/ä"  # noqa: S105 - characters that need escapes in a login
    user: str = "streamdedup"
    lifetime_s: float = 3600.0
    expired: bool = False
    quotes_lifetime: bool = False
    answer: tuple[int, bytes] | None = None
    url: str = ""
    issued: list[str] = field(default_factory=list)
    scopes: list[str] = field(default_factory=list)

    def respond(self, login: str, form: dict[str, list[str]]) -> tuple[int, bytes]:
        """Return status and body for a request to the token endpoint."""
        if self.answer is not None:
            return self.answer
        name, _, secret = base64.b64decode(login.removeprefix("Basic ")).decode().partition(":")
        if (unquote(name), unquote(secret)) != (self.client_id, self.client_secret):
            return 401, b'{"error": "invalid_client", "error_description": "unknown"}'
        assert form["grant_type"] == ["client_credentials"]
        self.scopes += form.get("scope", [])
        token = unsigned_token(self.user, -60 if self.expired else self.lifetime_s)
        self.issued.append(token)
        lifetime = str(self.lifetime_s) if self.quotes_lifetime else self.lifetime_s
        facts = {"access_token": token, "token_type": "Bearer", "expires_in": lifetime}
        return 200, json.dumps(facts).encode()


@contextlib.contextmanager
def identity_provider() -> Iterator[IdentityProvider]:
    """Serve a provider."""
    provider = IdentityProvider()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            status, answer = provider.respond(self.headers["Authorization"], parse_qs(body))
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            # A client need not read an answer that is too long.
            with contextlib.suppress(ConnectionError):
                self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    with serving(Handler) as address:
        provider.url = f"{address}/token"
        yield provider
