"""A bucket of an object store with an S3 API, as a `SnapshotDestination`. Uses botocore for requests and signatures."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import Session

from penstock_operator.snapshots.errors import SnapshotError

PART_BYTES = 16 << 20
"""Size of the parts of an upload. S3 allows 10,000 parts; at most two are in memory."""
READ_BYTES = 1 << 20
MAX_FILES = 100_000
CONNECT_TIMEOUT_S, READ_TIMEOUT_S, ATTEMPTS = 10, 60, 4


class ObjectStoreAddress(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A bucket and the prefix of its objects. If there is no `ca_file`, the CAs of the system are trusted."""

    endpoint: str
    bucket: str
    prefix: str = ""
    region: str = "us-east-1"
    ca_file: str = ""


class ObjectStoreDestination:
    """Objects below a prefix of a bucket."""

    def __init__(self, address: ObjectStoreAddress, access_key: str, secret_key: str) -> None:
        self._bucket, self._prefix = address.bucket, address.prefix
        self._where = f"{address.endpoint}/{address.bucket}"
        # The newer checksums of botocore are not understood by all servers; `tasks` verifies the content.
        config = Config(
            signature_version="s3v4",
            s3={"addressing_style": "path"},
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            retries={"total_max_attempts": ATTEMPTS, "mode": "standard"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        try:
            self._client: Any = Session().create_client(
                "s3",
                region_name=address.region,
                endpoint_url=address.endpoint,
                aws_access_key_id=access_key,
                aws_secret_access_key=secret_key,
                verify=address.ca_file if address.ca_file and Path(address.ca_file).exists() else None,
                config=config,
            )
        except (BotoCoreError, ValueError, OSError) as e:
            raise SnapshotError(f"cannot connect to the object store {self._where}: {e}") from None

    def write(self, file: str, chunks: Iterable[bytes]) -> None:
        """Upload an object, in parts if it is large. An object becomes visible when it is complete."""
        key = self._prefix + file
        parts = in_parts(chunks)
        first, second = next(parts, b""), next(parts, None)
        if second is None:
            self._call("put_object", file, Key=key, Body=first)
            return
        upload = self._call("create_multipart_upload", file, Key=key)["UploadId"]
        done = []
        try:
            for number, part in enumerate(_chain(first, second, parts), 1):
                made = self._call("upload_part", file, Key=key, UploadId=upload, PartNumber=number, Body=part)
                done.append({"ETag": made["ETag"], "PartNumber": number})
            self._call("complete_multipart_upload", file, Key=key, UploadId=upload, MultipartUpload={"Parts": done})
        except BaseException:
            with contextlib.suppress(SnapshotError):  # the first error is the one to report
                self._call("abort_multipart_upload", file, Key=key, UploadId=upload)
            raise

    def read(self, file: str) -> Iterator[bytes]:
        """Yield the content of an object."""
        body = self._call("get_object", file, Key=self._prefix + file)["Body"]
        try:
            while chunk := body.read(READ_BYTES):
                yield chunk
        except (BotoCoreError, OSError) as e:
            raise SnapshotError(f'cannot read "{self._prefix}{file}" of {self._where}: {e}') from None
        finally:
            body.close()

    def files(self) -> list[str]:
        """Return the names of all objects directly below the prefix."""
        found: list[str] = []
        more: dict[str, str] = {}
        while len(found) < MAX_FILES:
            page = self._call("list_objects_v2", "", Prefix=self._prefix, Delimiter="/", **more)
            found += [entry["Key"].removeprefix(self._prefix) for entry in page.get("Contents") or ()]
            if not page.get("IsTruncated") or not page.get("NextContinuationToken"):
                break
            more = {"ContinuationToken": page["NextContinuationToken"]}
        return found

    def remove(self, file: str) -> None:
        """Delete an object."""
        self._call("delete_object", file, Key=self._prefix + file)

    def _call(self, method: str, file: str, **arguments: Any) -> Any:
        try:
            return getattr(self._client, method)(Bucket=self._bucket, **arguments)
        except ClientError as e:
            error = e.response.get("Error") or {}
            why = f"{error.get('Code') or 'error'}: {error.get('Message') or e}"
        except (BotoCoreError, OSError) as e:
            why = str(e) or type(e).__name__
        what = method.replace("_", " ") + (f' of "{self._prefix}{file}"' if file else "")
        raise SnapshotError(f"{what} failed at the object store {self._where}: {why[:500]}") from None


def in_parts(chunks: Iterable[bytes], part_bytes: int = PART_BYTES) -> Iterator[bytes]:
    """Yield the bytes in parts of equal size; the last one may be smaller."""
    held = bytearray()
    for chunk in chunks:
        held += chunk
        while len(held) >= part_bytes:
            yield bytes(held[:part_bytes])
            del held[:part_bytes]
    if held:
        yield bytes(held)


def _chain(first: bytes, second: bytes, parts: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield second
    yield from parts
