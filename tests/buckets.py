"""A local S3 server, simulated by moto."""

from __future__ import annotations

import subprocess
import sys
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
    try:
        with _configured(environ, server.port) as bucket.client:
            yield bucket
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def bucket_process(environ: pytest.MonkeyPatch) -> Iterator[Any]:
    """Serve S3 as ``served_bucket`` does, from a process of its own, and yield boto3's client.

    Some calls of deltalake hold the interpreter's lock until the server has answered.
    """
    command = [sys.executable, "-m", "tests.buckets"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin, _configured(environ, int(process.stdout.readline())) as client:
            yield client


@contextmanager
def _configured(environ: pytest.MonkeyPatch, port: int) -> Iterator[Any]:
    """Create the bucket, and have clients use this server; yield one."""
    url = f"http://127.0.0.1:{port}"
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("AWS_ENDPOINT_URL", url),
    ):
        environ.setenv(name, value)
    # moto keeps objects for the whole process: without this, a test would see those of an earlier test.
    urllib.request.urlopen(urllib.request.Request(f"{url}/moto-api/reset", method="POST")).close()  # noqa: S310  # of this machine
    client: Any = boto3.client("s3")
    client.create_bucket(Bucket="evidence")
    try:
        yield client
    finally:
        client.close()


if __name__ == "__main__":  # until standard input ends
    serving = make_server("127.0.0.1", 0, Bucket(), threaded=True)
    threading.Thread(target=serving.serve_forever, args=(0.02,)).start()
    print(serving.port, flush=True)
    sys.stdin.read()
    serving.shutdown()
