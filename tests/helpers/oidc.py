"""An identity provider over HTTP on 127.0.0.1: the code flow with PKCE as the specifications say, and lies on demand.

It checks what the console sends on its own and imports nothing of the application:

    async with Provider() as provider:
        provider.claims["groups"] = ["admins"]
        provider.lie(nonce="another")        # of the next id tokens
"""

import asyncio
import base64
import functools
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable
from typing import Any, Self
from urllib.parse import parse_qs, urlencode

from aiohttp import web
from joserfc import jwt
from joserfc.jwk import RSAKey

__all__ = [
    "CLIENT",
    "SECRET",
    "Provider",
    "hmac_by_client_secret",
    "hmac_by_public_key",
    "key",
    "signed_by",
    "unsigned",
]

CLIENT, SECRET = "console", "s3cret-of-the-client"
Sign = Callable[["Provider", dict[str, Any]], str]


@functools.cache
def key(kid: str) -> RSAKey:
    """A key of the provider's, or somebody's; made once, as that takes a while."""
    return RSAKey.generate_key(2048, {"kid": kid, "use": "sig", "alg": "RS256"})


def signed_by(kid: str, named: str = "") -> Sign:
    """Signs with a key; `named`: what the token says it was signed with."""
    return lambda provider, claims: jwt.encode({"alg": "RS256", "kid": named or kid}, claims, key(kid))


def unsigned(provider: "Provider", claims: dict[str, Any]) -> str:
    """`alg: none`, as the specification of JWTs allows it."""
    return f"{_packed({'alg': 'none'})}.{_packed(claims)}."


def hmac_by_public_key(provider: "Provider", claims: dict[str, Any]) -> str:
    """HS256 with what everybody knows as its secret: the public key."""
    return _hmac({"alg": "HS256", "kid": "first"}, claims, key("first").as_pem(private=False))


def hmac_by_client_secret(provider: "Provider", claims: dict[str, Any]) -> str:
    """HS256 as the specification has it, with the client's secret."""
    return _hmac({"alg": "HS256"}, claims, SECRET.encode())


def _hmac(header: dict[str, Any], claims: dict[str, Any], secret: bytes) -> str:
    """By hand: a library refuses to."""
    said = f"{_packed(header)}.{_packed(claims)}"
    return f"{said}.{_encoded(hmac.digest(secret, said.encode(), 'sha256'))}"


def _packed(part: dict[str, Any]) -> str:
    return _encoded(json.dumps(part).encode())


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


class Provider:
    """One provider with one client. What people there do is said before: nobody is asked for a password."""

    def __init__(self) -> None:
        self.issuer = ""
        self.callback = ""
        """The one redirect URI that is registered."""
        self.claims: dict[str, Any] = {"sub": "248289761001", "preferred_username": "ada", "groups": ["staff", "ops"]}
        """Of whoever logs in."""
        self.says: dict[str, Any] = {}
        """Instead of what the metadata would say."""
        self.error: dict[str, str] = {}
        """What the person is sent back with instead of a code."""
        self.answer: dict[str, Any] | None = None
        """Instead of the tokens."""
        self.status = 200
        """Of all replies but pages for people."""
        self.silent = False
        """True: no request is ever answered."""
        self.drips = False
        """True: each answer begins and never ends."""
        self.codes_last = False
        """True: a code may be used again, which no provider may allow."""
        self.keys = ["first"]
        self.sign: Sign = signed_by("first")
        self.asked: list[str] = []
        self._lies: dict[str, Any] = {}
        self._codes: dict[str, dict[str, str]] = {}
        self._runner: web.AppRunner | None = None

    def lie(self, **claims: Any) -> None:
        """Claims of id tokens, in place of the true ones; None: left out."""
        self._lies = claims

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/.well-known/openid-configuration", self._answered(self._metadata))
        app.router.add_get("/keys", self._answered(self._jwks))
        app.router.add_post("/token", self._answered(self._token))
        app.router.add_get("/authorize", self._authorize)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.issuer = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """From now on nobody is there."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _answered(self, make: Callable[[web.Request], Any]) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.StreamResponse:
            self.asked.append(request.path)
            if self.silent:
                await asyncio.Event().wait()
            if self.drips:
                drip = web.StreamResponse()
                await drip.prepare(request)
                while True:
                    await drip.write(b" ")
                    await asyncio.sleep(0.02)
            if self.status != 200:
                return web.json_response({"error": "broken"}, status=self.status)
            reply: web.StreamResponse = await make(request)
            return reply

        return handle

    async def _metadata(self, _: web.Request) -> web.Response:
        said = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "code_challenge_methods_supported": ["S256"],
        }
        return web.json_response({**said, **self.says})

    async def _jwks(self, _: web.Request) -> web.Response:
        return web.json_response({"keys": [key(kid).as_dict(private=False) for kid in self.keys]})

    async def _authorize(self, request: web.Request) -> web.Response:
        """Where people log in; this one lets everybody on at once."""
        asked = request.query
        assert asked["response_type"] == "code"
        assert asked["client_id"] == CLIENT
        assert asked["code_challenge_method"] == "S256"
        assert "openid" in asked["scope"].split()
        if asked["redirect_uri"] != self.callback:
            return web.Response(status=400, text="this redirect URI isn't registered")
        back = {"state": asked["state"], "iss": self.issuer}
        if self.error:
            back |= self.error
        else:
            code = secrets.token_urlsafe(16)
            self._codes[code] = dict(asked)
            back["code"] = code
        raise web.HTTPFound(f"{self.callback}?{urlencode(back)}")

    async def _token(self, request: web.Request) -> web.Response:
        form = parse_qs(await request.text())
        given = {name: values[0] for name, values in form.items()}
        basic = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        shown = request.headers.get("Authorization", "") == f"Basic {basic}"
        sent = (given.get("client_id"), given.get("client_secret")) == (CLIENT, SECRET)
        methods = self.says.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        if not (shown if "client_secret_basic" in methods else sent):
            return web.json_response({"error": "invalid_client"}, status=401)
        asked = self._codes.get(given["code"])
        if not self.codes_last:
            self._codes.pop(given["code"], None)
        challenge = _encoded(hashlib.sha256(given["code_verifier"].encode()).digest())
        if asked is None or challenge != asked["code_challenge"] or given["redirect_uri"] != asked["redirect_uri"]:
            return web.json_response({"error": "invalid_grant"}, status=400)
        now = int(time.time())
        claims = {
            "iss": self.issuer, "aud": CLIENT, "iat": now, "exp": now + 300, "nonce": asked.get("nonce"), **self.claims,
            **self._lies,
        }  # fmt: skip
        token = self.sign(self, {name: value for name, value in claims.items() if value is not None})
        tokens = {"access_token": "opaque", "token_type": "Bearer", "expires_in": 300, "id_token": token}
        return web.json_response(tokens if self.answer is None else self.answer)
