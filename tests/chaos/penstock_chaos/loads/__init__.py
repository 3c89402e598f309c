"""The workloads: each module is a process of its own, `main(options)`, that writes a journal of its answers.

`options` holds `bootstrap` and `journal` and what the module's docstring names. SIGTERM means: bring to an end what you
have begun, and go. Times in journals are `time.monotonic()`, one clock for the machine.
"""
