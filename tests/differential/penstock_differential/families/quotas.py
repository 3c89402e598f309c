"""Client quotas: entities, keys and values with edge cases, and filters."""

from __future__ import annotations

from penstock_differential.case import Case
from penstock_differential.families import family
from penstock_differential.values import Tree

STEPS = 8
ALTER, DESCRIBE = "AlterClientQuotas", "DescribeClientQuotas"
KEYS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
VALUES = (1e12, 2e12, 1e15, 1.5, 0.0, -1.0, 1e300)
CONNECTIONS = "connection_creation_rate"


def entity(case: Case) -> list[Tree]:
    """Return an entity with names of the case, mostly valid; never a default, which would limit other cases."""
    user: Tree = {"entity_type": "user", "entity_name": case.prefix}
    client: Tree = {"entity_type": "client-id", "entity_name": f"{case.prefix}-c"}
    address: Tree = {"entity_type": "ip", "entity_name": f"10.1.{case.rng.randrange(256)}.{case.rng.randrange(256)}"}
    unusual: list[list[Tree]] = [
        [],
        [user, address],
        [{"entity_type": "group", "entity_name": case.prefix}],
        [{"entity_type": "user", "entity_name": ""}],
        [{"entity_type": "ip", "entity_name": "not an address"}],
        [{"entity_type": "", "entity_name": case.prefix}],
    ]
    usual: list[list[Tree]] = [[user], [client], [user, client], [client, user], [address]]
    return case.rng.choice(usual if case.rng.random() < 0.8 else unusual)


def names(parts: list[Tree]) -> dict[str, str]:
    """Return an entity regardless of the order."""
    return {part["entity_type"]: part["entity_name"] for part in parts}


def operations(case: Case, parts: list[Tree]) -> list[Tree]:
    """Return changes of an entity's quotas."""
    is_address = any(part["entity_type"] == "ip" for part in parts)
    keys = [CONNECTIONS] if is_address else list(KEYS)
    if case.rng.random() < 0.15:
        keys += [key for key in ("unknown", CONNECTIONS, "producer_byte_rate") if key not in keys]
    return [
        {"key": key, "value": case.rng.choice(VALUES), "remove": case.rng.random() < 0.3}
        for key in case.rng.sample(keys, case.rng.randint(0, min(len(keys), 2)))
    ]


def filters(case: Case) -> list[Tree]:
    """Return a filter that finds only entities of the case, or an invalid one."""
    user: Tree = {"entity_type": "user", "match_type": 0, "match": case.prefix}
    client: Tree = {"entity_type": "client-id", "match_type": 0, "match": f"{case.prefix}-c"}
    any_client: Tree = {"entity_type": "client-id", "match_type": 2, "match": None}
    default_client: Tree = {"entity_type": "client-id", "match_type": 1, "match": None}
    return case.rng.choice(
        [
            [user],
            [client],
            [user, client],
            [user, any_client],
            [user, default_client],
            [user, user],
            [{**user, "match": None}],
            [user, {**any_client, "match": "x"}],
            [{**user, "match_type": 3}],
            [{**user, "entity_type": "group"}],
            [{**user, "entity_type": ""}],
            [user, {"entity_type": "ip", "match_type": 2, "match": None}],
        ]
    )


@family(ALTER, DESCRIBE, weight=3)
def client_quotas(case: Case) -> None:
    """Changes of several entities, valid and not, and what filters find afterwards."""
    for _ in range(STEPS):
        entries: list[Tree] = []
        for _ in range(case.rng.choice([1, 1, 1, 2, 0])):
            parts = entity(case)
            if all(names(parts) != names(entry["entity"]) for entry in entries):  # Kafka applies only the last
                entries.append({"entity": parts, "ops": operations(case, parts)})
        tree: Tree = {"entries": entries, "validate_only": case.rng.random() < 0.2}
        case.ask(ALTER, tree, case.version(ALTER))
        query: Tree = {"components": filters(case), "strict": case.rng.random() < 0.5}
        case.ask(DESCRIBE, query, case.version(DESCRIBE))
