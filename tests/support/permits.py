"""Leave for attempts in tests that are not about privacy."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from gateway.core.config import Config
from gateway.core.place import Place, Tier
from gateway.core.ports import Surroundings
from gateway.jobs.synthetic import synthetic_permit

PERMIT = synthetic_permit(Place(Tier.CLOUD), "gw")
ALONE = Surroundings(cast("Config", None), Path("unused"), lambda name, group: None)
"""For kinds that look at nothing around them."""
