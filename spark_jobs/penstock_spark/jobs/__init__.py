"""Jobs defined in YAML files.

`spec` defines and validates the job file, `kinds` turns a validated job into a streaming query, `run` keeps that query
running. Called by `penstock_spark.cli`.
"""
