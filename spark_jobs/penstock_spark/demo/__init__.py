"""The demo: sends real flights through a broker into two Spark jobs, and kills and restarts one of them.

`scenario` runs it, `cli.demo` shows the results.
"""
