"""Parts of the crash tests: a broker that can be killed, loads that record acknowledgements, and audits.

The loads run in separate processes and use third-party clients only. Each writes its attempts and acknowledgements to a
journal. The audits read everything back and compare it with the journals.
"""
