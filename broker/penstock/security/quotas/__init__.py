"""Client quotas (KIP-13, KIP-124, KIP-546, KIP-599, KIP-612): how much a user, client id or address may use.

- `rates`: measures what is used, over windows or with a token bucket
- `resolution`: finds the quota of a client by Kafka's precedence
- `usage`: what one entity has used of one quota
- `mutations`: the quota on partitions that one request creates or deletes
- `client_quotas`: the quotas and the usage of all clients of a broker
"""
