"""What every test shares."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# No deadline: two cores are shared with real brokers. A failure prints the blob that replays it.
settings.register_profile(
    "comet", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow], max_examples=100
)
settings.register_profile("deep", settings.get_profile("comet"), max_examples=5_000)
settings.load_profile(os.environ.get("COMET_HYPOTHESIS", "comet"))
