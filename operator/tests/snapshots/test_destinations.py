"""A directory and a bucket as destinations of snapshots."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import botocore.session
import pytest

from penstock_operator.pki.authority import create_authority
from penstock_operator.snapshots.destinations import DirectoryDestination, SnapshotDestination
from penstock_operator.snapshots.errors import SnapshotError
from penstock_operator.snapshots.object_store import (
    PART_BYTES,
    ObjectStoreAddress,
    ObjectStoreDestination,
    in_parts,
)

pytestmark = pytest.mark.integration


def broken() -> Iterator[bytes]:
    yield b"x" * (PART_BYTES + 1)
    yield b"x" * PART_BYTES
    raise SnapshotError("etcd ended")


@pytest.fixture
def bucket(s3: str, request: pytest.FixtureRequest) -> ObjectStoreAddress:
    name = f"b-{abs(hash(request.node.nodeid))}"
    client = botocore.session.Session().create_client(
        "s3", "us-east-1", endpoint_url=s3, aws_access_key_id="k", aws_secret_access_key="s"
    )
    client.create_bucket(Bucket=name)
    return ObjectStoreAddress(endpoint=s3, bucket=name, prefix="a/b/")


@pytest.fixture(params=["directory", "bucket"])
def destination(request: pytest.FixtureRequest, tmp_path: Path) -> SnapshotDestination:
    if request.param == "directory":
        return DirectoryDestination(tmp_path / "a" / "b")
    return ObjectStoreDestination(request.getfixturevalue("bucket"), "k", "s")


def test_a_file_is_written_in_one_piece_read_listed_and_removed(destination: SnapshotDestination) -> None:
    assert destination.files() == []
    large = os.urandom(PART_BYTES * 2 + 17)
    destination.write("large.db", (large[at : at + 32_768] for at in range(0, len(large), 32_768)))
    destination.write("small.json", [b"{}"])
    destination.write("small.json", [b"{", b"}"])
    assert sorted(destination.files()) == ["large.db", "small.json"]
    assert b"".join(destination.read("large.db")) == large
    assert b"".join(destination.read("small.json")) == b"{}"
    destination.remove("large.db")
    destination.remove("large.db")
    assert destination.files() == ["small.json"]


def test_a_write_that_fails_leaves_nothing(destination: SnapshotDestination) -> None:
    with pytest.raises(SnapshotError, match="etcd ended"):
        destination.write("one.db", broken())
    assert destination.files() == []


def test_a_failed_upload_leaves_no_parts_that_cost_money(bucket: ObjectStoreAddress) -> None:
    with pytest.raises(SnapshotError, match="etcd ended"):
        ObjectStoreDestination(bucket, "k", "s").write("one.db", broken())
    client = botocore.session.Session().create_client(
        "s3", "us-east-1", endpoint_url=bucket.endpoint, aws_access_key_id="k", aws_secret_access_key="s"
    )
    assert not client.list_multipart_uploads(Bucket=bucket.bucket).get("Uploads")


def test_what_is_missing_or_denied_is_an_error_with_the_name(s3: str, tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match=r'cannot read ".*none.db": No such file'):
        list(DirectoryDestination(tmp_path).read("none.db"))
    address = ObjectStoreAddress(endpoint=s3, bucket="no-such-bucket", prefix="p/")
    with pytest.raises(
        SnapshotError, match=rf'put object of "p/x.db" failed at the object store {s3}/no-such-bucket: NoSuchBucket'
    ):
        ObjectStoreDestination(address, "k", "s").write("x.db", [b"x"])
    nothing = ObjectStoreAddress(endpoint="http://127.0.0.1:1", bucket="b")
    with pytest.raises(SnapshotError, match="list objects v2 failed"):
        ObjectStoreDestination(nothing, "k", "s").files()
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(SnapshotError, match="cannot write"):
        DirectoryDestination(blocked / "folder").write("x", [b""])


def test_an_interrupted_write_to_a_directory_is_cleaned_up_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "old.db.partial").write_text("half")
    DirectoryDestination(tmp_path).write("new.db", [b"x"])
    assert [path.name for path in tmp_path.iterdir()] == ["new.db"]


def test_parts_are_equal_but_the_last() -> None:
    assert list(in_parts([b"abc", b"defg", b""], 3)) == [b"abc", b"def", b"g"]
    assert list(in_parts([b"abcdef"], 3)) == [b"abc", b"def"]
    assert list(in_parts([], 3)) == []


def test_an_object_store_with_a_ca_of_its_own_is_trusted_by_the_ca_in_the_secret_only(
    secured_s3: tuple[str, Path], tmp_path: Path
) -> None:
    url, ca = secured_s3
    client = botocore.session.Session().create_client(
        "s3", "us-east-1", endpoint_url=url, aws_access_key_id="k", aws_secret_access_key="s", verify=str(ca)
    )
    client.create_bucket(Bucket="secured")
    trusted = ObjectStoreDestination(ObjectStoreAddress(endpoint=url, bucket="secured", ca_file=str(ca)), "k", "s")
    trusted.write("x.db", [b"x"])
    assert trusted.files() == ["x.db"]
    stranger = tmp_path / "stranger.crt"
    stranger.write_text(create_authority("other", "test", datetime.now(UTC), 2).certificate)
    for ca_file in ("", "/there/is/none", str(stranger)):
        address = ObjectStoreAddress(endpoint=url, bucket="secured", ca_file=ca_file)
        with pytest.raises(SnapshotError, match="certificate verify failed"):
            ObjectStoreDestination(address, "k", "s").files()
