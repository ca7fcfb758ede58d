"""Better answers are better: the variant's declared quality."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from gateway.routing.scorers._interface import View

UNDECLARED = 0.5


class QualityScorer:
    kind: ClassVar[str] = "quality"

    def score(self, views: Sequence[View]) -> list[float]:
        return [UNDECLARED if v.quality is None else v.quality for v in views]
