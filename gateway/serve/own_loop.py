"""An event loop in a thread of its own, inside a Serve replica.

Listeners live there, so that Serve's bookkeeping on the replica's main loop never delays a request.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from oip.errors import OipError

T = TypeVar("T")
TELL_S = 5.0
"""How long a replica that did not start waits to be asked why."""
logger = logging.getLogger(__name__)


class OwnLoop:
    """`what` names the deployment in messages.

    A failure to start (an address in use, say) is kept as `failure` instead of raised: Serve would
    only try again and again, and the one who typed the address would wait. After a while the
    replica is unhealthy then, so that one which came back to a taken address is replaced until the
    address is free.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tidegate-listeners", daemon=True)
        self._thread.start()
        self._tell_until = time.monotonic() + TELL_S
        self.failure = ""

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` to its end, and keep why it failed."""
        try:
            asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except (OSError, ValueError, OipError) as error:
            self.failure = str(error)
            logger.error("%s did not start: %s", self._what, error)
        except Exception as error:
            logger.exception("%s did not start", self._what)
            self.failure = (
                f"{self._what} did not start ({type(error).__name__}); Ray's replica log says where"
            )
        self._tell_until = time.monotonic() + TELL_S

    def check(self) -> None:
        """Raises RuntimeError when the replica is of no use any more."""
        if not self.alive:
            raise RuntimeError("the listeners' thread has ended")
        if self.failure and time.monotonic() > self._tell_until:
            raise RuntimeError(self.failure)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` gives there, awaited here."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
