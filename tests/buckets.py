"""A local S3 server, simulated by moto."""

from __future__ import annotations

import threading
import urllib.request
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pytest


class Bucket:
    """A local S3 server. On request it kills the process that uploads a manifest, before storing the manifest."""

    def __init__(self) -> None:
        self._inner = DomainDispatcherApplication(create_backend_app)
        self._one_at_a_time = threading.Lock()  # conditional puts are atomic, which moto's are not
        self.victim: Any = None  # a process
        self.client: Any = None  # boto3's

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        """Answer a request."""
        writes = environ["REQUEST_METHOD"] in {"PUT", "POST"}
        if self.victim is not None and writes and "/manifest/" in environ["PATH_INFO"]:
            self.victim.kill()
            start("503 Slow Down", [])
            return []
        with self._one_at_a_time if "HTTP_IF_NONE_MATCH" in environ else nullcontext():
            answer: Iterable[bytes] = self._inner(environ, start)
        return answer


@contextmanager
def served_bucket(environ: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """Serve S3 with a bucket ``evidence``, and set the environment variables that point to it."""
    bucket = Bucket()
    server = make_server("127.0.0.1", 0, bucket, threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.port}"),
    ):
        environ.setenv(name, value)
    # moto keeps objects for the whole process: without this, a test would see those of an earlier test.
    reset = urllib.request.Request(f"http://127.0.0.1:{server.port}/moto-api/reset", method="POST")
    urllib.request.urlopen(reset).close()  # noqa: S310  # of this machine
    bucket.client = boto3.client("s3")
    bucket.client.create_bucket(Bucket="evidence")
    try:
        yield bucket
    finally:
        bucket.client.close()
        server.shutdown()
        thread.join()
        server.server_close()
