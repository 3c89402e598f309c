"""The APIs of share groups (KIP-932): members, fetches and acknowledgements, start offsets, and stored states."""
