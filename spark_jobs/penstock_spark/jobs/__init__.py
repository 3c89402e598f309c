"""Jobs that run by a file of YAML: what they are, how they are checked, what they do, how they are kept running.

`specs` says what a job's file may hold, `document` checks it and points to the line, each kind has a module that turns
a checked job into a streaming query, `running` keeps that query alive. `penstock_spark.cli` is on top.
"""
