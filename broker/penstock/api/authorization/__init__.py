"""Authorization of requests: what each API requires, and its enforcement.

- `rules`: the kinds of requirements
- `subjects`: what an element of a request concerns
- `table`: the requirements of each API
- `enforcement`: applies the table to requests, for the dispatcher
- `access`: the rights of one client, and checks of topics for Produce and Fetch
"""
