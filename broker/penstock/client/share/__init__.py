"""The share consumer: a member of a share group (KIP-932). `consumer` is the public API."""
