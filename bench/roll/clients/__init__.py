"""One program per client library: a producer and a consumer of one topic, each at the library's defaults.

Usage: PROGRAM BOOTSTRAP TOPIC GROUP. The producer sends rising numbers until standard input ends; the consumer reads on
until it has all that was acknowledged, or for `LIMIT_S` more. Each line of the output is one event: `acknowledged N`,
`received N` or `error NAME`, after the Unix time in seconds. ROLL_RACK is the rack of the consumer, if it has one.
"""
