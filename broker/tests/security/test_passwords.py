"""Verification of passwords, whose key derivation must not run on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from security_kit import Users, credential, run_here

from penstock.security import passwords
from penstock.security.passwords import MAX_DERIVATIONS, PasswordVerifier


class Threads:
    """Counts derivations, and how many run at the same time."""

    def __init__(self) -> None:
        self.runs = self.running = self.most = 0

    async def run(self, work: Callable[[], bytes]) -> bytes:
        self.runs += 1
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        return work()


async def test_a_password_is_derived_once_and_then_recognised() -> None:
    threads = Threads()
    verifier = PasswordVerifier(Users(credential("ana", "right")).credentials, threads.run)
    assert not verifier.is_remembered("ana", "right")
    assert await verifier.verify("ana", "right")
    assert verifier.is_remembered("ana", "right")
    assert not verifier.is_remembered("ana", "wrong")
    assert not verifier.is_remembered("bob", "right")
    assert threads.runs == 1


async def test_a_changed_or_deleted_credential_is_not_recognised_by_its_old_password() -> None:
    users = Users(credential("ana", "old"))
    verifier = PasswordVerifier(users.credentials, run_here)
    assert await verifier.verify("ana", "old")
    users.put(credential("ana", "new"))
    assert not verifier.is_remembered("ana", "old")
    assert not await verifier.verify("ana", "old")
    assert await verifier.verify("ana", "new")
    users.delete("ana")
    assert not verifier.is_remembered("ana", "new")
    assert not await verifier.verify("ana", "new")


async def test_a_credential_that_is_deleted_during_the_derivation_does_not_verify() -> None:
    users = Users(credential("ana", "right"))

    async def delete_meanwhile(work: Callable[[], bytes]) -> bytes:
        users.delete("ana")
        return work()

    assert not await PasswordVerifier(users.credentials, delete_meanwhile).verify("ana", "right")


async def test_unknown_users_take_a_derivation_too_and_few_run_at_a_time() -> None:
    threads = Threads()
    verifier = PasswordVerifier(Users(credential("ana", "right")).credentials, threads.run)
    assert not any(await asyncio.gather(*(verifier.verify(f"user-{n}", "x") for n in range(20))))
    assert threads.runs == 20
    assert threads.most == MAX_DERIVATIONS


async def test_a_user_with_both_mechanisms_is_verified_against_sha_512() -> None:
    users = Users(credential("ana", "first"), credential("ana", "second", "SCRAM-SHA-512"))
    verifier = PasswordVerifier(users.credentials, run_here)
    assert await verifier.verify("ana", "second")
    assert not await verifier.verify("ana", "first")


async def test_the_number_of_remembered_passwords_is_bounded() -> None:
    limit, passwords.MAX_REMEMBERED = passwords.MAX_REMEMBERED, 3
    try:
        users = Users(*(credential(f"user-{n}", "x") for n in range(5)))
        verifier = PasswordVerifier(users.credentials, run_here)
        for number in range(5):
            assert await verifier.verify(f"user-{number}", "x")
        assert [verifier.is_remembered(f"user-{n}", "x") for n in range(5)] == [False, False, True, True, True]
    finally:
        passwords.MAX_REMEMBERED = limit
