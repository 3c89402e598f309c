"""One module per suite of measurements; each defines `run(session)`."""
