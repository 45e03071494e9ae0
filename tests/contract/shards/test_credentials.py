"""Callers are known on every shard: requests carry certificates and tokens, and a revocation applies everywhere."""

from __future__ import annotations

import json
import ssl
import time
from typing import TYPE_CHECKING, Any

import httpx
import jwt

from tests.acceptance.command import ADMIN_TOKEN, serving
from tests.contract.http.certificates import Authority
from tests.contract.shards.sharded import until

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "a-secret-of-a-test-with-32-characters"  # noqa: S105  # valid for this test only
TENANTS = ["first-tenant", "tenant-two", "third-one", "tenant-four"]


def test_tls_certificates_and_tokens_work_through_every_shard(tmp_path: Path) -> None:
    """Certificates are forwarded; a token works in another tenant where it is granted, until it is revoked there."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server", "localhost")
    mine = authority.issue("client", "worker.example")
    (tmp_path / "secret").write_text(SECRET)
    names = {"DNS:worker.example": {"tenant": TENANTS[0], "role": "tenant-admin"}}
    settings = {
        "TENANTQ_SHARDS__COUNT": "2",
        "TENANTQ_TLS__CERTIFICATE": str(certificate),
        "TENANTQ_TLS__KEY": str(key),
        "TENANTQ_TLS__CLIENT_CA": str(authority.path),
        "TENANTQ_TLS__VERIFY": "optional",
        "TENANTQ_CERTIFICATES__NAMES": json.dumps(names),
        "TENANTQ_JWT__SECRET_FILE": str(tmp_path / "secret"),
    }
    with serving(tmp_path / "data", **settings) as served:
        plain, with_certificate = _context(authority), _context(authority)
        with_certificate.load_cert_chain(*mine)

        def ask(
            method: str, path: str, url: str = served.url, token: str | None = ADMIN_TOKEN, **options: Any
        ) -> httpx.Response:
            context = options.pop("verify", plain)
            headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
            return httpx.request(method, url + path, headers=headers, verify=context, timeout=30, **options)

        host = served.url.rpartition(":")[0]
        urls = [f"{host}{one['address']}" for one in ask("GET", "/v1/topology").json()["shards"]]
        homes = {name: ask("PUT", f"/v1/tenants/{name}", json={}).json()["id"] >> 26 for name in TENANTS}
        assert set(homes.values()) == {0, 1}
        for url in urls:
            own = ask("GET", "/v1/tenant", url, token=None, verify=with_certificate)
            assert (own.status_code, own.json()["name"]) == (200, TENANTS[0])
            assert ask("GET", "/v1/tenant", url, token=None).status_code == 401
        elsewhere = next(name for name in TENANTS if homes[name] != homes[TENANTS[0]])
        _revoke_token(ask, urls, TENANTS[0], elsewhere)
        path = f"/v1/tenants/{elsewhere}/queues/mail"
        ask("PUT", f"/v1/tenants/{elsewhere}/grants/cert:DNS:worker.example", json={"role": "operator"})
        seen = [ask("PUT", path, url, token=None, verify=with_certificate, json={}).status_code for url in urls]
        assert seen == [200, 200]
        revoked = {"principal": "cert:DNS:worker.example", "until": 1 << 42}
        assert ask("POST", f"/v1/tenants/{TENANTS[0]}/revocations", json=revoked).status_code == 204
        for url in urls:
            until(lambda: ask("PUT", path, url, token=None, verify=with_certificate, json={}).status_code == 401)  # noqa: B023  # called at once
        stored = ask("GET", f"{path.removesuffix('/queues/mail')}/audit?action=put_queue&result=DENIED").json()["rows"]
        assert {row["remote"] for row in stored} <= {"127.0.0.1"}


def _revoke_token(ask: Any, urls: list[str], home: str, elsewhere: str) -> None:
    claims = {"sub": "worker", "tenant": home, "role": "consumer", "jti": "one", "exp": int(time.time()) + 3_600}
    token = jwt.encode(claims, SECRET, algorithm="HS256")
    ask("PUT", f"/v1/tenants/{elsewhere}/grants/jwt:worker", json={"role": "consumer"})
    for tenant in (home, elsewhere):
        ask("PUT", f"/v1/tenants/{tenant}/queues/mail", json={})
    paths = ["/v1/queues/mail/poll", f"/v1/tenants/{elsewhere}/queues/mail/poll"]
    for url in urls:
        assert [ask("POST", path, url, token=token, json={}).status_code for path in paths] == [200, 200]
    revoked = {"token_id": "one", "until": 1 << 42}
    assert ask("POST", f"/v1/tenants/{home}/revocations", json=revoked).status_code == 204
    for url in urls:
        until(lambda: [ask("POST", path, url, token=token, json={}).status_code for path in paths] == [401, 401])  # noqa: B023  # the same


def _context(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.path))
