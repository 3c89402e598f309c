"""A transaction over three brokers, for failure tests."""

from __future__ import annotations

from brokers_kit import Client, E, TxnCluster


async def begun(
    cluster: TxnCluster, coordinator: int = 1, transactional_id: str = "x", kind: type[Client] = Client
) -> Client:
    client = kind(cluster, transactional_id, coordinator)
    assert await client.init() is E.NONE
    return client


async def scene(cluster: TxnCluster, kind: type[Client] = Client) -> Client:
    """Return a client whose open transaction has written to t, u and g. Broker 1 coordinates x, broker 2 leads t, and
    broker 3 leads u and coordinates g."""
    await cluster.coordinate(1, "x")
    await cluster.coordinate(3, "g")
    await cluster.create("t", [2, 3, 1])
    await cluster.create("u", [3, 1, 2])
    client = await begun(cluster, kind=kind)
    await work(client)
    return client


async def work(client: Client, number: int = 1, t: int = 2, u: int = 3, g: int = 3) -> None:
    """Run one transaction up to its end. `t`, `u` and `g` are the ids of the leaders and the coordinator."""
    assert await client.add("t") is E.NONE
    assert await client.add("u") is E.NONE
    assert await client.add_group("g") is E.NONE
    assert await client.produce(t, b"%d" % number, "t") is E.NONE
    assert await client.produce(u, b"%d" % number, "u") is E.NONE
    assert await client.commit_offset(g, "g", number) is E.NONE


async def check_whole(cluster: TxnCluster, numbers: list[int], t: int = 2, u: int = 3) -> None:
    values = [b"%d" % number for number in numbers]
    assert await cluster.visible(t, "t") == values
    assert await cluster.visible(u, "u") == values
    assert await cluster.committed("g") == (numbers[-1] if numbers else -1)
    assert await cluster.pending() == []


async def leave_isr(cluster: TxnCluster) -> None:
    """Remove the dead broker 1 from the ISR."""
    for name, isr in (("t", [2, 3]), ("u", [3, 2])):
        await cluster.change(name, isr=isr, isr_epochs=[cluster.epoch_of(i) for i in isr])
