"""Properties are tested without a look at the clock: a busy machine makes nothing wrong."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("penstock")
