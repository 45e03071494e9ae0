"""Authentication for Amazon SQS: only requests signed with a key's secret are accepted."""

from __future__ import annotations

import datetime as dt
import http.client
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import botocore.auth
import msgspec
import pytest

from tenantq.domain.access import Grant
from tenantq.http.settings import HttpSettings
from tenantq.service.audit_trail import AuditQuery
from tenantq.service.call import Call
from tests.contract.gates.harness import suspension
from tests.contract.sqs.refusals import NO_QUEUE, code, refusal
from tests.contract.sqs.signed import FORM, fetch, json_call, presign, query_call, send, sign
from tests.contract.sqs.sqs_server import ADMIN_TOKEN, SqsServer, client_of

if TYPE_CHECKING:
    from pathlib import Path


def status_and_code(answer: Any) -> tuple[int, str]:
    """Return the status and code of an error over JSON."""
    return answer.status, answer.headers["x-amzn-query-error"]


def test_key_signs_from_its_creation_until_it_is_revoked(server: SqsServer, tenant: str) -> None:
    """Revocation applies at once; the tenant's other keys work. Without the secret, revoked and valid keys look the same."""
    key, other = server.key(tenant), server.key(tenant)
    first, second = (client_of(server.url, one.key_id, one.secret) for one in (key, other))
    first.create_queue(QueueName="work")
    server.run(server.server.service.access.revoke_key(server.admin, tenant, key.key_id))
    assert code(first.list_queues) == "InvalidClientTokenId"
    unknown_action = json_call(key, server.url + "/", "NoSuchAction")
    assert status_and_code(send(unknown_action)) == (403, "InvalidClientTokenId;Sender")
    for one in (key, other):
        assert code(client_of(server.url, one.key_id, "x").list_queues) == "SignatureDoesNotMatch"
    assert len(second.list_queues()["QueueUrls"]) == 1


def test_suspended_key_is_denied_access(server: SqsServer, tenant: str) -> None:
    """The text says why."""
    key, _ = server.key(tenant), server.key(tenant)
    client = client_of(server.url, key.key_id, key.secret)
    client.create_queue(QueueName="work")
    server.run(server.server.service.containment.contain_local(suspension(tenant, key.key_id)))
    assert code(client.list_queues) == "AccessDenied"
    assert "suspended" in refusal(client.list_queues)[1]


def test_invalid_signatures_are_refused_and_audited(server: SqsServer, tenant: str) -> None:
    """Covers a wrong secret, an unknown key, and the token in place of the secret."""
    key = server.key(tenant)
    since = server.server.shard.journal.span[1]
    for id, secret, wanted in (
        (key.key_id, key.secret[:-1] + "x", "SignatureDoesNotMatch"),
        (key.key_id, key.token, "SignatureDoesNotMatch"),
        ("nobody", key.secret, "InvalidClientTokenId"),
    ):
        assert code(client_of(server.url, id, secret).send_message, QueueUrl="x", MessageBody="m") == wanted
    server.clock.advance(2_000)
    page = server.run(
        server.server.service.audit.query_platform(server.admin, AuditQuery(action="add", result="DENIED"))
    )
    rows = [row for row in page.rows if row.seq > since]
    assert sum(row.count for row in rows) == 3
    assert {(row.principal, row.error_code) for row in rows} == {("unknown", "unauthenticated")}


def test_key_with_an_unknown_secret_says_that_a_new_one_is_needed(server: SqsServer) -> None:
    """This is the case for a token that an administrator chose."""
    (admin,) = server.run(server.server.service.access.list_platform_keys(server.admin))
    refused = refusal(client_of(server.url, admin.key_id, ADMIN_TOKEN).list_queues)
    assert refused[0] == "InvalidClientTokenId"
    assert "Create a new key" in refused[1]


def test_changed_request_is_refused(server: SqsServer, tenant: str) -> None:
    """The signature covers body, target, host, date and query."""
    key = server.key(tenant)
    call = json_call(key, server.url + "/", "CreateQueue", QueueName="work")

    def changed(name: str, value: str) -> Any:
        return send(call, lambda headers: headers.update({name: value}))

    assert send(call).status == 200
    mismatch = (403, "SignatureDoesNotMatch;Sender")
    assert status_and_code(changed("X-Amz-Target", "AmazonSQS.ListQueues")) == mismatch
    assert status_and_code(changed("Host", "elsewhere.example")) == mismatch
    assert status_and_code(changed("Content-Type", "application/json")) == mismatch
    assert status_and_code(changed("X-Amz-Date", "20200101T000000Z"))[0] == 403
    assert status_and_code(changed("X-Amz-Content-Sha256", "0" * 64)) == (
        400,
        "IncompleteSignature;Sender",
    )  # added in transit
    call.data = b'{"QueueName":"other"}'
    assert status_and_code(send(call)) == mismatch


def test_incomplete_signature_error_says_what_is_missing(server: SqsServer, tenant: str) -> None:
    """Covers parts of the header, required signed headers, and session tokens, which keys do not have."""
    key = server.key(tenant)
    call = json_call(key, server.url + "/", "ListQueues")
    whole = call.headers["Authorization"]

    def with_header(text: str) -> Any:
        return send(call, lambda headers: headers.update({"Authorization": text}))

    incomplete = (400, "IncompleteSignature;Sender")
    for wrong in (
        f"Bearer {key.token}",
        "AWS4-HMAC-SHA256",
        whole.replace("Signature=", "Sig="),
        whole.replace("host;", ""),
        whole.replace(";x-amz-target", ""),
        whole.replace("/aws4_request", ""),
        "Basic abc",
        "\xff\xfe",
    ):
        assert status_and_code(with_header(wrong)) == incomplete, wrong
    target = {"X-Amz-Target": "AmazonSQS.ListQueues"}
    session = sign(key, "POST", server.url + "/", b"{}", target, token="t")  # noqa: S106  # no secret
    assert status_and_code(send(session)) == (403, "InvalidClientTokenId;Sender")
    other = sign(key, "POST", server.url + "/", b"{}", target, service="s3")
    assert status_and_code(send(other)) == (403, "SignatureDoesNotMatch;Sender")
    assert status_and_code(fetch("POST", server.url, b"{}", target)) == (403, "MissingAuthenticationToken;Sender")


@pytest.mark.parametrize("minutes", [-16, 16])
def test_signature_outside_its_time_window_is_refused(
    server: SqsServer, tenant: str, minutes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """15 minutes either way are allowed."""
    key = server.key(tenant)
    now = dt.datetime.now(dt.UTC)
    for moved, wanted in ((minutes, 403), (minutes // 2, 200)):
        then = now + dt.timedelta(minutes=moved)
        monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *_, then=then: then.replace(tzinfo=None))
        assert send(json_call(key, server.url + "/", "ListQueues")).status == wanted, moved


def test_presigned_url_works_until_it_expires(server: SqsServer, tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It allows only its own action."""
    key = server.key(tenant)
    url = presign(key, "GET", f"{server.url}/?Action=CreateQueue&QueueName=signed")
    assert fetch("GET", url).status == 200
    assert fetch("GET", url.replace("QueueName=signed", "QueueName=other")).status == 403
    assert fetch("POST", url).status == 403
    assert fetch("GET", url.replace("X-Amz-Expires=60", "X-Amz-Expires=600")).status == 403
    then = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=61)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *_: then.replace(tzinfo=None))
    late = fetch("GET", presign(key, "GET", f"{server.url}/?Action=ListQueues"))
    assert (late.status, b"Signature expired" in late.body) == (403, True)


def test_unsigned_payload_must_be_declared(server: SqsServer, tenant: str) -> None:
    """A signed header must say so."""
    key = server.key(tenant)
    headers = {"X-Amz-Target": "AmazonSQS.ListQueues", "X-Amz-Content-Sha256": "UNSIGNED-PAYLOAD"}
    request = sign(key, "POST", server.url + "/", b"{}", headers)
    request.data = b'{"QueueNamePrefix":"a"}'
    assert send(request).status == 200


def test_roles_apply_to_sqs(server: SqsServer, tenant: str) -> None:
    """A producer sends and a consumer receives; other calls are denied and journaled."""
    admin = server.client(tenant)
    url = admin.create_queue(QueueName="work")["QueueUrl"]
    producer, consumer = server.client(tenant, "producer"), server.client(tenant, "consumer")
    producer.send_message(QueueUrl=url, MessageBody="m")
    (got,) = consumer.receive_message(QueueUrl=url)["Messages"]
    consumer.change_message_visibility(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=60)
    consumer.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
    assert code(consumer.send_message, QueueUrl=url, MessageBody="m") == "AccessDenied"
    assert code(producer.receive_message, QueueUrl=url) == "AccessDenied"
    assert code(producer.purge_queue, QueueUrl=url) == "AccessDenied"
    assert code(producer.create_queue, QueueName="other") == "AccessDenied"
    assert code(consumer.delete_queue, QueueUrl=url) == "AccessDenied"
    server.clock.advance(2_000)
    rows = server.run(server.server.service.audit.query(server.admin, tenant, AuditQuery(result="DENIED"))).rows
    assert sorted({row.op for row in rows}) == ["add", "delete_queue", "poll", "purge", "put_queue"]


def test_queue_of_another_tenant_is_unreachable_by_url_arn_and_handle(server: SqsServer) -> None:
    """The reply is the same whether it exists or not, and its owner's journal has no row."""
    server.tenant("owner"), server.tenant("thief")
    owner, thief = server.client("owner"), server.client("thief")
    url = owner.create_queue(QueueName="mine")["QueueUrl"]
    own = thief.create_queue(QueueName="mine")["QueueUrl"]
    owner.send_message(QueueUrl=url, MessageBody="secret")
    (got,) = owner.receive_message(QueueUrl=url)["Messages"]
    handle, account = got["ReceiptHandle"], url.split("/")[-2]
    for wrong in (url, url.replace("mine", "none"), url.replace(account, "000000999999")):
        assert code(thief.receive_message, QueueUrl=wrong) == NO_QUEUE
        assert code(thief.delete_message, QueueUrl=wrong, ReceiptHandle=handle) == NO_QUEUE
    assert code(thief.get_queue_url, QueueName="mine", QueueOwnerAWSAccountId=account) == NO_QUEUE
    arn = f"arn:aws:sqs:eu-north-1:{account}:mine"
    assert code(thief.start_message_move_task, SourceArn=arn) == "ResourceNotFoundException"
    assert code(thief.delete_message, QueueUrl=own, ReceiptHandle=handle) == "ReceiptHandleIsInvalid"
    redrive = {"RedrivePolicy": msgspec.json.encode({"deadLetterTargetArn": arn, "maxReceiveCount": 1}).decode()}
    assert code(thief.set_queue_attributes, QueueUrl=own, Attributes=redrive) == "InvalidParameterValue"
    owner.delete_message(QueueUrl=url, ReceiptHandle=handle)


def test_rates_and_quotas_apply(server: SqsServer) -> None:
    """The errors are those that SQS clients retry."""
    server.tenant("small", quotas={"backlog": 2}, limits={"read": {"ops_per_sec": 1, "burst": 2}})
    client = server.client("small")
    url = client.create_queue(QueueName="work")["QueueUrl"]
    for _ in range(2):
        client.send_message(QueueUrl=url, MessageBody="m")
    assert code(client.send_message, QueueUrl=url, MessageBody="m") == "OverLimit"
    batch = client.send_message_batch(QueueUrl=url, Entries=[{"Id": "a", "MessageBody": "m"}])
    assert [one["Code"] for one in batch["Failed"]] == ["OverLimit"]
    client.receive_message(QueueUrl=url, MaxNumberOfMessages=2)
    assert code(client.receive_message, QueueUrl=url) == "RequestThrottled"
    assert "QueueDoesNotExist" not in code(client.receive_message, QueueUrl=url)


def test_principal_uses_its_grants_in_other_tenants_by_url(server: SqsServer) -> None:
    """One fleet can serve many tenants."""
    server.tenant("host"), server.tenant("fleet")
    url = server.client("host").create_queue(QueueName="jobs")["QueueUrl"]
    key = server.key("fleet")
    service = server.server.service
    server.run(service.access.put_grant(server.admin, "host", f"key:{key.key_id}", Grant(role="consumer")))
    server.client("host").send_message(QueueUrl=url, MessageBody="m")
    fleet = client_of(server.url, key.key_id, key.secret)
    assert fleet.receive_message(QueueUrl=url)["Messages"][0]["Body"] == "m"
    assert code(fleet.send_message, QueueUrl=url, MessageBody="m") == "AccessDenied"


def test_connections_of_a_key_count_together_with_those_over_http(tmp_path: Path) -> None:
    """The oldest idle one of too many is evicted, however each names the key."""
    with SqsServer(tmp_path, listener=HttpSettings(connections_per_credential_max=1)) as server:
        key = server.key()
        address = urlsplit(server.url)
        first = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
        first.request("GET", "/v1/queues", headers={"Authorization": f"Bearer {key.token}"})
        assert first.getresponse().read()
        assert send(json_call(key, server.url + "/", "ListQueues")).status == 200
        assert first.sock.recv(1) == b""
        first.close()


HOSTILE = [
    b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"QueueUrl":1}', b'{"QueueUrl":"x","MessageBody":{}}', b'{"Entries":[1]}',
    b"[" * 5_000, b'{"a":' * 5_000, b'{"QueueUrl":"' + b"x" * 100_000 + b'"}', b'{"MessageBody":"\\ud800"}',
    b'{"QueueUrl":"http://x/000000000001/a","DelaySeconds":1e999}', b'{"QueueUrl":"http://x/../../etc/passwd"}',
    b'{"QueueName":"' + b"a" * 81 + b'"}', b'{"SourceArn":"arn:aws:sqs:x:y:z"}', b'{"TaskHandle":"!!!"}',
    b'{"NextToken":"\xc3\xa4","MaxResults":5}', b'{"AttributeNames":["Nonsense"]}', b'{"Attributes":{"Policy":"{"}}',
]  # fmt: skip


def test_hostile_bodies_are_refused(server: SqsServer, tenant: str) -> None:
    """Every action replies with an error of its own protocol, never an internal one."""
    from tenantq.sqs.actions.table import ACTIONS  # noqa: PLC0415  # what there is to try

    key = server.key(tenant)
    for action in ACTIONS:
        for body in HOSTILE:
            headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{action}"}
            answer = send(sign(key, "POST", server.url + "/", body, headers))
            assert answer.status in {200, 400, 403}, (action, body[:60], answer)
            if answer.status != 200:
                assert set(msgspec.json.decode(answer.body)) == {"__type", "message"}
    for form in (
        "Action=", "Action=SendMessage", "Action=SendMessage&QueueUrl=%ff", "Action=CreateQueue&Attribute.1.Value=x",
        "Action=CreateQueue&Attribute=1&Attribute.1.Name=x", "Action=SendMessageBatch&" + "&".join(
            f"SendMessageBatchRequestEntry.{n}.Id={n}" for n in range(1_500)), "Action=ListQueues&MaxResults=many",
        "Action=ListQueues&a.b.c.d.e.f.g.h.i.j.k=1", "Action=<x>&y=%00", "&".join(f"a{n}=1" for n in range(3_000)),
    ):  # fmt: skip
        answer = send(sign(key, "POST", server.url + "/", form.encode(), {"Content-Type": FORM}))
        assert answer.status in {400, 404}, (form[:60], answer)
    assert send(query_call(key, server.url + "/", "ListQueues")).status == 200


def test_other_paths_get_tenantqs_own_not_found(server: SqsServer) -> None:
    """Only requests in Amazon's form get its errors."""
    for method, path in (("GET", "/"), ("POST", "/"), ("GET", "/some/where"), ("POST", "/some/where")):
        answer = fetch(method, server.url + path)
        assert (answer.status, msgspec.json.decode(answer.body)["code"]) == (404, "not_found")
    unknown = fetch("GET", server.url + "/000000000001/work")
    assert (unknown.status, unknown.body) == (404, b"<UnknownOperationException/>")


def test_keys_and_handles_survive_a_restart(tmp_path: Path) -> None:
    """If the signing file is lost, tokens still work, and only new keys can sign."""
    with SqsServer(tmp_path) as first:
        key = first.key()
        client = client_of(first.url, key.key_id, key.secret)
        url = client.create_queue(QueueName="work")["QueueUrl"]
        client.send_message(QueueUrl=url, MessageBody="m")
        (got,) = client.receive_message(QueueUrl=url, VisibilityTimeout=600)["Messages"]
    file = tmp_path / "key_maker"
    assert file.stat().st_mode & 0o777 == 0o600
    with SqsServer(tmp_path) as second:
        client = client_of(second.url, key.key_id, key.secret)
        client.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
    file.unlink()
    with SqsServer(tmp_path) as third:
        assert "Create a new key" in refusal(client_of(third.url, key.key_id, key.secret).list_queues)[1]
        assert third.run(third.server.service.queues.list(Call(bearer=key.token), None))
        assert third.client().list_queues()["QueueUrls"]
