"""Client certificates are mapped to principals by their subject alternative names alone."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenantq.domain.access import Grant
from tenantq.errors import Forbidden, Invalid, Unauthenticated
from tenantq.gates.certificate import CertificateGrant, CertificateMap, CertificateSettings

ACME = CertificateGrant(tenant="acme", role="consumer", queues=("orders-*",))
GLOBEX = CertificateGrant(tenant="globex", role="producer")
NAMES = {
    "DNS:worker.acme.example": ACME,
    "DNS:*.acme.example": CertificateGrant(tenant="acme", role="viewer"),
    "URI:spiffe://acme/worker": ACME,
    "IP:10.0.0.7": ACME,
    "IP:2001:db8::7": ACME,
    "DNS:globex.example": GLOBEX,
}
MAP = CertificateMap(CertificateSettings(names=NAMES))


def certificate(*names: tuple[str, str], **fields: Any) -> dict[str, Any]:
    """Return a certificate in the format of the ssl module."""
    return {
        "subject": ((("commonName", "worker.acme.example"),),),
        "notAfter": "Jun  1 12:00:00 2030 GMT",
        "subjectAltName": names,
        **fields,
    }


@pytest.mark.parametrize(
    ("name", "principal", "role"),
    [
        (("DNS", "worker.acme.example"), "cert:DNS:worker.acme.example", "consumer"),
        (("DNS", "Worker.ACME.example."), "cert:DNS:worker.acme.example", "consumer"),
        (("DNS", "other.acme.example"), "cert:DNS:other.acme.example", "viewer"),
        (("URI", "spiffe://acme/worker"), "cert:URI:spiffe://acme/worker", "consumer"),
        (("IP Address", "10.0.0.7"), "cert:IP:10.0.0.7", "consumer"),
        (("IP Address", "2001:DB8:0:0:0:0:0:7\n"), "cert:IP:2001:db8::7", "consumer"),
    ],
)
def test_a_mapped_name_is_a_principal(name: tuple[str, str], principal: str, role: str) -> None:
    """Exact names take precedence over wildcards, until the certificate expires."""
    found = MAP.principal(certificate(name))
    assert found.id == principal
    assert found.tenant == "acme"
    assert [grant.role for grant in found.grants] == [role]
    assert found.expires_at == 1_906_545_600_000


@pytest.mark.parametrize(
    "names",
    [
        (),
        (("DNS", "acme.example"),),
        (("DNS", "a.b.acme.example"),),
        (("DNS", "*.acme.example"),),
        (("DNS", ".acme.example"),),
        (("DNS", "worker.acme.example\0.evil.example"),),
        (("DNS", "évil.acme.example"),),
        (("URI", "spiffe://acme/Worker"),),
        (("URI", "worker.acme.example"),),
        (("DNS", "10.0.0.7"),),
        (("IP Address", "10.0.0.8"),),
        (("IP Address", "<invalid>"),),
        (("email", "worker.acme.example"),),
        (("DirName", ((("commonName", "worker.acme.example"),),)),),
    ],
)
def test_other_names_are_not_mapped(names: Any) -> None:
    """The common name is ignored, a star matches one label, and a wildcard in the certificate matches nothing."""
    assert MAP.find(certificate(*names)) is None
    with pytest.raises(Unauthenticated):
        MAP.principal(certificate(*names))


def test_a_certificate_without_names_is_not_mapped() -> None:
    """Nor is an empty one, which the ssl module returns for an unverified certificate."""
    for empty in ({}, {"subject": ((("commonName", "worker.acme.example"),),)}):
        with pytest.raises(Unauthenticated):
            MAP.principal(empty)


def test_names_of_several_tenants_are_forbidden_in_any_order() -> None:
    """No tenant takes precedence."""
    names = [("DNS", "worker.acme.example"), ("DNS", "globex.example"), ("DNS", "unmapped.example")]
    for order in itertools.permutations(names):
        with pytest.raises(Forbidden, match="several tenants") as caught:
            MAP.principal(certificate(*order))
        assert "acme" not in caught.value.message


def test_names_of_one_tenant_combine_their_grants_in_any_order() -> None:
    """The principal is the same each time."""
    names = [
        ("DNS", "worker.acme.example"),
        ("DNS", "x.acme.example"),
        ("URI", "spiffe://acme/worker"),
        ("DNS", "no.example"),
    ]
    found = {MAP.principal(certificate(*order)) for order in itertools.permutations(names)}
    (principal,) = found
    assert principal.id == "cert:DNS:worker.acme.example"
    assert principal.grants == (Grant(role="consumer", queues=("orders-*",)), Grant(role="viewer"))


@given(
    names=st.lists(st.tuples(st.sampled_from(["DNS", "URI", "IP Address", "email"]), st.text(max_size=40)), max_size=5)
)
def test_arbitrary_names_are_not_mapped(names: list[tuple[str, str]]) -> None:
    """They raise no error either."""
    assert MAP.find(certificate(*names)) is None


def test_a_certificate_with_a_malformed_expiry_is_refused() -> None:
    """It would otherwise be valid forever."""
    with pytest.raises(Unauthenticated):
        MAP.principal(certificate(("DNS", "worker.acme.example"), notAfter="whenever"))


@pytest.mark.parametrize(
    "name",
    [
        "",
        "worker.acme.example",
        "CN:worker",
        "DNS:",
        "DNS:*",
        "DNS:*.example",
        "DNS:a.*.example",
        "DNS:*.*.acme.example",
        "DNS:a b",
        "URI:",
        "URI:a\nb",
        "IP:10.0.0.0/8",
        "IP:host",
        "email:a@b.example",
        "DNS:" + "x." * 300,
    ],
)
def test_names_that_cannot_be_mapped_are_refused(name: str) -> None:
    """The error shows how names are written."""
    with pytest.raises(Invalid, match=r"certificates: .* is not a name such as"):
        CertificateMap(CertificateSettings(names={name: ACME}))


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (CertificateGrant(tenant="ACME", role="viewer"), "DNS:a.example': tenant: "),
        (CertificateGrant(tenant="acme", role="boss"), "DNS:a.example': role: "),
        (CertificateGrant(tenant="acme", role="viewer", queues=("a/b",)), "DNS:a.example': queues.0.: "),
        (CertificateGrant(tenant="acme", role="platform-admin"), "platform-admin"),
    ],
)
def test_invalid_entries_are_refused(entry: CertificateGrant, text: str) -> None:
    """The error names the entry and the field."""
    with pytest.raises(Invalid, match=text):
        CertificateMap(CertificateSettings(names={"DNS:a.example": entry}))


def test_one_name_in_two_spellings_is_refused() -> None:
    """It would be unclear which entry applies."""
    with pytest.raises(Invalid, match="twice"):
        CertificateMap(CertificateSettings(names={"DNS:a.example": ACME, "DNS:A.example": GLOBEX}))
