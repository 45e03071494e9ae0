"""Celery with tenantq as its broker. Only the broker changes: tasks, workers and callers stay as they are.

pip install 'celery[sqs]'
tenantq key create celery --tenant acme --role tenant-admin --json
CELERY_BROKER_URL=sqs://KEY_ID:SECRET@127.0.0.1:7070 celery -A celery_app worker
CELERY_BROKER_URL=sqs://KEY_ID:SECRET@127.0.0.1:7070 python celery_app.py
"""

import os

from celery import Celery

app = Celery("celery_app", broker=os.environ["CELERY_BROKER_URL"])
app.conf.broker_transport_options = {
    "region": "eu-north-1",  # any value: it is only part of the signature
    "is_secure": False,  # True if the server has TLS
    "wait_time_seconds": 20,  # long polls
}
app.conf.task_acks_late = True  # a task whose worker dies is redelivered


@app.task(autoretry_for=(ConnectionError,), retry_backoff=True)
def send_mail(to: str, template: str) -> None:
    """Send a mail."""
    print(f"sent {template} to {to}", flush=True)


if __name__ == "__main__":
    for customer in ("ann@example.com", "bob@example.com"):
        send_mail.delay(customer, "welcome")
    send_mail.apply_async(("eve@example.com", "how-is-it-going"), countdown=2)
