"""Targets of the export: a directory, or any fsspec URL. Files are written atomically."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from tenantq.errors import Invalid
from tenantq.journal.target_url import local_path, shown_url
from tenantq.runtime.durable_files import sync, write_durably


class ExportTarget(Protocol):
    """Stores files by name. Names are relative, with slashes."""

    def write(self, name: str, data: bytes) -> None:
        """Write a file durably and atomically. Replaces an older one."""

    def read(self, name: str) -> bytes:
        """Return a file's content. Raises FileNotFoundError."""

    def open(self, name: str) -> BinaryIO:
        """Open a file to read parts of it. Raises FileNotFoundError."""

    def names(self, under: str) -> list[str]:
        """Return the names of all files below a directory, sorted."""

    def delete(self, name: str) -> None:
        """Remove a file if it exists."""


class DirectoryTarget:
    """An ``ExportTarget`` in a local directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, data: bytes) -> None:
        """Write a file and sync it, also directories that were created for it."""
        file = self.path / name
        made = [parent for parent in file.parents if not parent.exists()]
        file.parent.mkdir(parents=True, exist_ok=True)
        write_durably(file, data)
        for parent in made:
            sync(parent.parent)

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def open(self, name: str) -> BinaryIO:
        return (self.path / name).open("rb")

    def names(self, under: str) -> list[str]:
        """List files, except unfinished ones."""
        return sorted(self._walk(self.path / under))

    def _walk(self, directory: Path) -> Iterator[str]:
        for where, _, files in os.walk(directory, onerror=_raise_unless_missing):
            below = Path(where).relative_to(self.path).as_posix()
            start = "" if below == "." else f"{below}/"
            yield from (start + name for name in files if not name.startswith("."))

    def delete(self, name: str) -> None:
        """Remove a file."""
        (self.path / name).unlink(missing_ok=True)


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


class RemoteTarget:
    """An ``ExportTarget`` at an fsspec URL. Object stores write objects atomically. Every failure is an OSError."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec  # noqa: PLC0415  # an extra
        except ImportError as error:
            raise Invalid(
                f"{shown_url(url)}: requires fsspec and the library of that store. Run pip install '.[remote]' in the checkout."
            ) from error
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url)
        except ImportError as error:
            raise Invalid(f"{shown_url(url)}: {error}") from error
        except ValueError:  # its text may repeat the URL
            raise Invalid(f"{shown_url(url)}: not a URL that fsspec supports") from None

    def write(self, name: str, data: bytes) -> None:
        path = f"{self._root}/{name}"
        with _as_os_error():
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(path, data)

    def read(self, name: str) -> bytes:
        with _as_os_error():
            data: bytes = self._fs.cat_file(f"{self._root}/{name}")
            return data

    def open(self, name: str) -> BinaryIO:
        """Open an object. Parts are fetched as they are read."""
        with _as_os_error():
            stream: BinaryIO = self._fs.open(f"{self._root}/{name}", "rb")
            return stream

    def names(self, under: str) -> list[str]:
        """List objects. Raises OSError if the target is unreachable; fsspec's own walk would return an empty list."""
        found: list[str] = []
        with _as_os_error():
            self._fs.invalidate_cache()
            waiting = [f"{self._root}/{under}".rstrip("/")]
            while waiting:
                try:
                    listed = self._fs.ls(waiting.pop(), detail=True)
                except FileNotFoundError:
                    continue
                found += [one["name"] for one in listed if one["type"] == "file"]
                waiting += [one["name"] for one in listed if one["type"] == "directory"]
        return sorted(path[len(self._root) + 1 :] for path in found)

    def delete(self, name: str) -> None:
        """Remove an object."""
        with _as_os_error():
            if self._fs.exists(f"{self._root}/{name}"):
                self._fs.rm_file(f"{self._root}/{name}")


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    """Turn errors of a store's library into OSError, after which the exporter retries."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def open_target(where: str | Path) -> ExportTarget:
    if isinstance(where, str) and where.startswith("s3://"):
        try:
            from tenantq.journal.bucket_target import BucketTarget  # noqa: PLC0415  # needs pyarrow, which is an extra
        except ImportError as error:
            raise Invalid(
                "export.target: a bucket requires pyarrow. Run pip install '.[parquet]' in the checkout."
            ) from error
        return BucketTarget(where)
    path = local_path(str(where))
    return DirectoryTarget(path) if path is not None else RemoteTarget(str(where))
