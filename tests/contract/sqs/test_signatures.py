"""Who is let in to Amazon SQS: whoever signs with a key's secret, and nobody else, whatever they try."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import botocore.auth
import msgspec
import pytest

from tenantq.domain.access import Grant
from tenantq.service.audit_trail import AuditQuery
from tenantq.service.call import Call
from tests.contract.gates.harness import suspension
from tests.contract.sqs.refusals import NO_QUEUE, code, refusal
from tests.contract.sqs.signed import FORM, fetch, json_call, presign, query_call, send, sign
from tests.contract.sqs.sqs_server import ADMIN_TOKEN, SqsServer, client_of

if TYPE_CHECKING:
    from pathlib import Path


def told(answer: Any) -> tuple[int, str]:
    """Return the status and the code of a refusal over JSON."""
    return answer.status, answer.headers["x-amzn-query-error"]


def test_a_key_signs_from_the_day_it_is_made_and_no_longer_than_it_holds(server: SqsServer, tenant: str) -> None:
    """Revoked, it is refused at once; the tenant's other keys go on."""
    key, other = server.key(tenant), server.key(tenant)
    first, second = (client_of(server.url, one.key_id, one.secret) for one in (key, other))
    first.create_queue(QueueName="work")
    server.run(server.server.service.access.revoke_key(server.admin, tenant, key.key_id))
    assert code(first.list_queues) == "InvalidClientTokenId"
    assert len(second.list_queues()["QueueUrls"]) == 1


def test_a_suspended_key_is_denied_access(server: SqsServer, tenant: str) -> None:
    """The text says why."""
    key, _ = server.key(tenant), server.key(tenant)
    client = client_of(server.url, key.key_id, key.secret)
    client.create_queue(QueueName="work")
    server.run(server.server.service.containment.contain_local(suspension(tenant, key.key_id)))
    assert code(client.list_queues) == "AccessDenied"
    assert "suspended" in refusal(client.list_queues)[1]


def test_what_was_not_signed_with_the_secret_is_refused(server: SqsServer, tenant: str) -> None:
    """A wrong secret, an unknown key, the token in place of the secret: and all of it is in the audit trail."""
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


def test_a_key_whose_secret_is_not_known_says_that_a_new_one_is_needed(server: SqsServer) -> None:
    """As one has it that an administrator chose."""
    (admin,) = server.run(server.server.service.access.list_platform_keys(server.admin))
    told = refusal(client_of(server.url, admin.key_id, ADMIN_TOKEN).list_queues)
    assert told[0] == "InvalidClientTokenId"
    assert "Make a new key" in told[1]


def test_a_changed_request_is_not_the_one_that_was_signed(server: SqsServer, tenant: str) -> None:
    """Body, target, host, date, query: each of them is part of what is signed."""
    key = server.key(tenant)
    call = json_call(key, server.url + "/", "CreateQueue", QueueName="work")

    def changed(name: str, value: str) -> Any:
        return send(call, lambda headers: headers.update({name: value}))

    assert send(call).status == 200
    mismatch = (403, "SignatureDoesNotMatch;Sender")
    assert told(changed("X-Amz-Target", "AmazonSQS.ListQueues")) == mismatch
    assert told(changed("Host", "elsewhere.example")) == mismatch
    assert told(changed("Content-Type", "application/json")) == mismatch
    assert told(changed("X-Amz-Date", "20200101T000000Z"))[0] == 403
    assert told(changed("X-Amz-Content-Sha256", "0" * 64)) == (400, "IncompleteSignature;Sender")  # added on the way
    call.data = b'{"QueueName":"other"}'
    assert told(send(call)) == mismatch


def test_a_signature_that_lacks_something_says_what(server: SqsServer, tenant: str) -> None:
    """A part of the header, a header that has to be signed, a session that keys do not have."""
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
        assert told(with_header(wrong)) == incomplete, wrong
    target = {"X-Amz-Target": "AmazonSQS.ListQueues"}
    session = sign(key, "POST", server.url + "/", b"{}", target, token="t")  # noqa: S106  # no secret
    assert told(send(session)) == (403, "InvalidClientTokenId;Sender")
    other = sign(key, "POST", server.url + "/", b"{}", target, service="s3")
    assert told(send(other)) == (403, "SignatureDoesNotMatch;Sender")
    assert told(fetch("POST", server.url, b"{}", target)) == (403, "MissingAuthenticationToken;Sender")


@pytest.mark.parametrize("minutes", [-16, 16])
def test_a_signature_of_another_time_is_refused(
    server: SqsServer, tenant: str, minutes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter of an hour either way is allowed, no more."""
    key = server.key(tenant)
    now = dt.datetime.now(dt.UTC)
    for moved, wanted in ((minutes, 403), (minutes // 2, 200)):
        then = now + dt.timedelta(minutes=moved)
        monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *_, then=then: then.replace(tzinfo=None))
        assert send(json_call(key, server.url + "/", "ListQueues")).status == wanted, moved


def test_a_presigned_url_does_what_it_says_for_as_long_as_it_says(
    server: SqsServer, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing else."""
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


def test_a_body_that_is_left_out_of_the_signature_is_left_out_openly(server: SqsServer, tenant: str) -> None:
    """Where a signed header says so."""
    key = server.key(tenant)
    headers = {"X-Amz-Target": "AmazonSQS.ListQueues", "X-Amz-Content-Sha256": "UNSIGNED-PAYLOAD"}
    request = sign(key, "POST", server.url + "/", b"{}", headers)
    request.data = b'{"QueueNamePrefix":"a"}'
    assert send(request).status == 200


def test_a_role_allows_here_what_it_allows_elsewhere(server: SqsServer, tenant: str) -> None:
    """A producer sends and a consumer receives; what else they try is denied, and journaled as such."""
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


def test_another_tenants_queue_is_out_of_reach_by_url_arn_and_handle(server: SqsServer) -> None:
    """Whether it exists or not, the answer is the same; and its owner's journal tells nothing of it."""
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


def test_rates_and_quotas_hold_as_everywhere(server: SqsServer) -> None:
    """With the errors that clients of Amazon SQS know how to wait for."""
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


def test_a_principal_with_grants_elsewhere_works_there_by_url(server: SqsServer) -> None:
    """One fleet for many tenants."""
    server.tenant("host"), server.tenant("fleet")
    url = server.client("host").create_queue(QueueName="jobs")["QueueUrl"]
    key = server.key("fleet")
    service = server.server.service
    server.run(service.access.put_grant(server.admin, "host", f"key:{key.key_id}", Grant(role="consumer")))
    server.client("host").send_message(QueueUrl=url, MessageBody="m")
    fleet = client_of(server.url, key.key_id, key.secret)
    assert fleet.receive_message(QueueUrl=url)["Messages"][0]["Body"] == "m"
    assert code(fleet.send_message, QueueUrl=url, MessageBody="m") == "AccessDenied"


HOSTILE = [
    b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"QueueUrl":1}', b'{"QueueUrl":"x","MessageBody":{}}', b'{"Entries":[1]}',
    b"[" * 5_000, b'{"a":' * 5_000, b'{"QueueUrl":"' + b"x" * 100_000 + b'"}', b'{"MessageBody":"\\ud800"}',
    b'{"QueueUrl":"http://x/000000000001/a","DelaySeconds":1e999}', b'{"QueueUrl":"http://x/../../etc/passwd"}',
    b'{"QueueName":"' + b"a" * 81 + b'"}', b'{"SourceArn":"arn:aws:sqs:x:y:z"}', b'{"TaskHandle":"!!!"}',
    b'{"NextToken":"\xc3\xa4","MaxResults":5}', b'{"AttributeNames":["Nonsense"]}', b'{"Attributes":{"Policy":"{"}}',
]  # fmt: skip


def test_hostile_bodies_are_refused_and_never_break_anything(server: SqsServer, tenant: str) -> None:
    """Whatever stands in them, for every action, in both protocols: a refusal of its own protocol, never a fault."""
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


def test_paths_that_are_no_queues_are_not_found_as_before(server: SqsServer) -> None:
    """What is not asked in Amazon's words is answered in tenantq's."""
    for method, path in (("GET", "/"), ("POST", "/"), ("GET", "/some/where"), ("POST", "/some/where")):
        answer = fetch(method, server.url + path)
        assert (answer.status, msgspec.json.decode(answer.body)["code"]) == (404, "not_found")
    unknown = fetch("GET", server.url + "/000000000001/work")
    assert (unknown.status, unknown.body) == (404, b"<UnknownOperationException/>")


def test_a_restart_keeps_keys_and_handles_and_a_lost_file_only_ends_signatures(tmp_path: Path) -> None:
    """Tokens still open everything else; new keys sign again."""
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
        assert "Make a new key" in refusal(client_of(third.url, key.key_id, key.secret).list_queues)[1]
        assert third.run(third.server.service.queues.list(Call(bearer=key.token), None))
        assert third.client().list_queues()["QueueUrls"]
