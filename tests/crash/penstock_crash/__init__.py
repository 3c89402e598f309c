"""What the crash tests are made of: a broker that can be killed, loads that write down what they were promised, audits.

The loads run in processes of their own and know the broker only by other people's clients. Each writes a journal: what
it tried, and what was acknowledged. The audits read everything back and hold it against the journals.
"""
