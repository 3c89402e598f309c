"""The workloads: each module runs `main(options)` in a separate process and writes its results to a journal.

`options` contains `bootstrap`, `journal`, and the options in the module's docstring. After SIGTERM a workload completes
its pending operations and exits. Times in journals are `time.monotonic()`, which all processes of the machine share.
"""
