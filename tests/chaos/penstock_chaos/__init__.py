"""Three real brokers and a real etcd under real faults, with third-party clients at work (`tests/chaos/run.py`).

The checker is the simulation's (`penstock_simulation.checker`); journals and the small disk are the crash tests'.
"""
