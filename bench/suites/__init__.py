"""One module per suite of measurements; each exposes ``run(session)``."""
