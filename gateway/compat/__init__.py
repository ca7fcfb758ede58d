"""Which devices can run a model file. PURE.

needs   what a .tflite file asks of whoever runs it
offer   what a device says it has, and what of the needs it lacks
"""

from gateway.compat.needs import Needs, UnreadableModel, needs
from gateway.compat.offer import check

__all__ = ["Needs", "UnreadableModel", "check", "needs"]
