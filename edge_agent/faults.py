"""What becomes of a fault of the agent's own."""

from __future__ import annotations

import logging
import traceback

from oip.errors import OipError
from oip.reasons import Reason

logger = logging.getLogger(__name__)


def unexpected(error: BaseException, where: str) -> OipError:
    """Logs a fault and gives what its caller is told. The log gets the exception's type and its stack,
    not its text, which may quote request data."""
    stack = "".join(traceback.format_tb(error.__traceback__))
    logger.error("%s failed with %s\n%s", where, type(error).__name__, stack)
    return OipError(Reason.INTERNAL, "the agent failed inside; its log says where")
