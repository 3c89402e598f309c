"""DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554)."""

from __future__ import annotations

from penstock.api.routes import RequestContext, Route
from penstock.control.results import AdminError
from penstock.control.scram_admin import (
    MECHANISM_NUMBERS,
    Alteration,
    CredentialDeletion,
    CredentialUpsertion,
    ScramAdmin,
)
from penstock.wire.messages import alter_user_scram_credentials as alter
from penstock.wire.messages import describe_user_scram_credentials as describe

NUMBERS = {name: number for number, name in MECHANISM_NUMBERS.items()}


class ScramCredentialsApi:
    """Serves both requests in version 0."""

    def __init__(self, admin: ScramAdmin) -> None:
        self.admin = admin

    def routes(self) -> list[Route]:
        """Return the routes of these APIs."""
        return [
            Route(describe.DescribeUserScramCredentialsRequest, self.describe, failed_describe),
            Route(alter.AlterUserScramCredentialsRequest, self.alter, failed_alter),
        ]

    def describe(
        self, request: describe.DescribeUserScramCredentialsRequest, context: RequestContext
    ) -> describe.DescribeUserScramCredentialsResponse:
        """Return mechanism and iterations of each credential, never salts or keys."""
        users = None if request.users is None else [user.name for user in request.users]
        results = []
        for user, found in self.admin.describe(users).items():
            result = describe.DescribeUserScramCredentialsResult(user=user)
            if isinstance(found, AdminError):
                result.error_code, result.error_message = found.error, found.message
            else:
                infos = [(NUMBERS[record.mechanism], record.iterations) for record in found]
                result.credential_infos = [
                    describe.CredentialInfo(mechanism=number, iterations=iterations)
                    for number, iterations in sorted(infos)
                ]
            results.append(result)
        return describe.DescribeUserScramCredentialsResponse(results=results)

    async def alter(
        self, request: alter.AlterUserScramCredentialsRequest, context: RequestContext
    ) -> alter.AlterUserScramCredentialsResponse:
        """Delete, create and replace credentials."""
        alterations: list[Alteration] = [CredentialDeletion(each.name, each.mechanism) for each in request.deletions]
        alterations += [
            CredentialUpsertion(each.name, each.mechanism, each.iterations, each.salt, each.salted_password)
            for each in request.upsertions
        ]
        results = []
        for user, error in (await self.admin.alter(alterations)).items():
            result = alter.AlterUserScramCredentialsResult(user=user)
            if error is not None:
                result.error_code, result.error_message = error.error, error.message
            results.append(result)
        return alter.AlterUserScramCredentialsResponse(results=results)


def failed_describe(
    request: describe.DescribeUserScramCredentialsRequest, error: int
) -> describe.DescribeUserScramCredentialsResponse:
    """Return a response with an error."""
    return describe.DescribeUserScramCredentialsResponse(error_code=error)


def failed_alter(
    request: alter.AlterUserScramCredentialsRequest, error: int
) -> alter.AlterUserScramCredentialsResponse:
    """Return a response with an error for each user."""
    users = dict.fromkeys([each.name for each in request.deletions] + [each.name for each in request.upsertions])
    return alter.AlterUserScramCredentialsResponse(
        results=[alter.AlterUserScramCredentialsResult(user=user, error_code=error) for user in users]
    )
