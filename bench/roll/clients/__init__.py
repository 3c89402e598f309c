"""One program per client library: a producer and a consumer of one topic, each at the library's defaults.

Usage: PROGRAM BOOTSTRAP TOPIC GROUP. The producer sends ascending numbers until standard input ends. The consumer then
reads until it has all acknowledged records, or for `LIMIT_S` more. Each line of the output is one event: `acknowledged
N`, `received N` or `error NAME`, after the Unix time in seconds. ROLL_RACK is the rack of the consumer, if any.
"""
