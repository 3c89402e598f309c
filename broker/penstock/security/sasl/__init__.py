"""The server side of SASL mechanisms, without sockets, threads or timers of their own.

- `exchange`: the interface of a mechanism and of one authentication
- `plain`, `scram`, `oauthbearer`: the mechanisms
- `token`, `jwks`: validation of tokens, and the keys that sign them
"""
