"""Third-party clients on a secured broker: each mechanism works, and each refusal reaches the user with its reason.

aiokafka and kafka-python report every failed connection as a failed bootstrap; they log the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from penstock_e2e.connections import CERTIFICATE, MECHANISMS
from penstock_e2e.secured import FORBIDDEN, GROUP_PREFIX, SecuredBroker, secured_broker
from penstock_e2e.secured_clients import CLIENTS

pytestmark = pytest.mark.xdist_group("secured-clients")

VALUES = [b"%d" % number for number in range(20)]
BOOTSTRAP = "Unable to bootstrap"
CREDENTIALS = {"confluent-kafka": "Authentication failed: invalid credentials", "kcat": "Authentication failed"}
CERTIFICATES = dict.fromkeys(("confluent-kafka", "kcat"), "alert unknown ca")
AUTHORITIES = dict.fromkeys(("confluent-kafka", "kcat"), "certificate verify failed")
RIGHTS = {
    "aiokafka": "TransactionalIdAuthorizationFailed",
    "confluent-kafka": "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "kafka-python": "TransactionalIdAuthorizationFailed",
    "kcat": "Topic authorization failed",
}
each_client = pytest.mark.parametrize("client", CLIENTS)
each_mechanism = pytest.mark.parametrize("mechanism", MECHANISMS)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with secured_broker(tmp_path_factory.mktemp("secured")) as running:
        yield running


@each_client
@each_mechanism
def test_records_are_produced_in_a_transaction_and_consumed_in_a_group(
    broker: SecuredBroker, client: str, mechanism: str
) -> None:
    produce, consume = CLIENTS[client]
    topic = f"ana-{client}-{mechanism}"
    produce(broker.connection(mechanism), topic, VALUES)
    assert consume(broker.connection(mechanism), topic, len(VALUES)) == VALUES


@each_client
@each_mechanism
def test_wrong_credentials_are_refused(broker: SecuredBroker, client: str, mechanism: str) -> None:
    produce, _ = CLIENTS[client]
    reason = (CERTIFICATES if mechanism == CERTIFICATE else CREDENTIALS).get(client, BOOTSTRAP)
    with pytest.raises(Exception, match=reason):
        produce(broker.refused(mechanism), "ana-refused", VALUES)


@each_client
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", CERTIFICATE])
def test_a_broker_of_an_unknown_ca_is_refused(broker: SecuredBroker, client: str, mechanism: str) -> None:
    produce, _ = CLIENTS[client]
    with pytest.raises(Exception, match=AUTHORITIES.get(client, BOOTSTRAP)):
        produce(broker.distrusting(mechanism), "ana-refused", VALUES)


@each_client
def test_a_token_proves_groups_and_their_rights(broker: SecuredBroker, client: str) -> None:
    produce, consume = CLIENTS[client]
    topic = f"{GROUP_PREFIX}{client}"
    produce(broker.connection("OAUTHBEARER"), topic, VALUES)
    assert consume(broker.connection("OAUTHBEARER"), topic, len(VALUES)) == VALUES
    with pytest.raises(Exception, match=RIGHTS[client]):
        produce(broker.connection("SCRAM-SHA-512"), topic, VALUES)


@each_client
@each_mechanism
def test_a_topic_without_rights_is_refused(broker: SecuredBroker, client: str, mechanism: str) -> None:
    produce, consume = CLIENTS[client]
    with pytest.raises(Exception, match=RIGHTS[client]):
        produce(broker.connection(mechanism), FORBIDDEN, VALUES)
    with pytest.raises(Exception, match=re.compile("authorization.?failed", re.IGNORECASE)):
        consume(broker.connection(mechanism), FORBIDDEN, 1)
