"""An S3-compatible bucket as a target, through Arrow's own client.

Credentials, region and endpoint come from the usual AWS sources (``AWS_…`` variables, ``~/.aws``, the machine's role), or from the
URL: ``s3://bucket/prefix?region=…&endpoint_override=…``.
"""

from typing import BinaryIO

import pyarrow as pa
from pyarrow import fs

from tenantq.errors import Invalid
from tenantq.journal.target_url import shown_url


class BucketTarget:
    """An ``ExportTarget`` below a prefix. Objects are written atomically."""

    def __init__(self, url: str) -> None:
        try:
            self._fs, self._root = fs.FileSystem.from_uri(url)
        except (pa.ArrowException, ValueError) as error:
            # Arrow's text may repeat the URL, which may contain a secret.
            raise Invalid(f"{shown_url(url)}: not a valid bucket URL ({type(error).__name__})") from None
        self._root = self._root.rstrip("/")

    def write(self, name: str, data: bytes) -> None:
        with self._fs.open_output_stream(f"{self._root}/{name}") as stream:
            stream.write(data)

    def read(self, name: str) -> bytes:
        with self._fs.open_input_file(f"{self._root}/{name}") as stream:
            data: bytes = stream.read()
            return data

    def open(self, name: str) -> BinaryIO:
        """Open an object. Parts are fetched as they are read."""
        stream: BinaryIO = self._fs.open_input_file(f"{self._root}/{name}")
        return stream

    def names(self, under: str) -> list[str]:
        """List objects. Raises OSError if the bucket is unreachable."""
        where = f"{self._root}/{under}".rstrip("/")
        found = self._fs.get_file_info(fs.FileSelector(where, recursive=True, allow_not_found=True))
        return sorted(one.path[len(self._root) + 1 :] for one in found if one.type == fs.FileType.File)

    def delete(self, name: str) -> None:
        """Remove an object."""
        try:
            self._fs.delete_file(f"{self._root}/{name}")
        except FileNotFoundError:
            return
