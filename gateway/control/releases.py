"""The releases of every model, and the one that makes and changes them.

The database is the truth. A change is: content into the store, one transaction, the signed metadata. A
kill at any point leaves either nothing but content that no release names, or a release that is signed at
the next start; until then devices refuse it, because nobody has signed it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.control.signing import Signing, SigningError
from gateway.core.config import Config, ModelConfig
from gateway.core.config.models import FIRST_VERSION
from gateway.core.release import (
    ANYWHERE,
    FORMATS,
    Blob,
    Reference,
    Release,
    ReleaseFile,
    Stage,
    signed_slot,
)
from gateway.edgehub.desired import offers
from gateway.edgehub.groups import EdgeConfig
from gateway.store.artifacts import Artifact, ArtifactError, load_artifact
from gateway.store.blobs import BlobError, BlobStore
from gateway.store.releases import Key, read_releases, read_standing, write_release, write_standing
from oip.errors import OipError
from oip.names import shown
from oip.reasons import Reason

UPLOAD_S = 3600.0
"""How long content may lie in the store before a release names it."""
Content = bytes | Blob
"""What a file holds, or where that lies in the store already."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that the configuration names and the store has otherwise; `text` is a sentence."""

    model: str
    version: str
    endpoint: str
    text: str


class Releases:
    """Every release and what stands, in memory as in the database. Reading is immediate; whatever changes
    something returns once it is on disk and signed. Failures are OipError: UNAVAILABLE where the database or
    the store fails, and what was acknowledged stays."""

    def __init__(self, engine: AsyncEngine, blobs: BlobStore, signing: Signing) -> None: ...

    async def start(self, config: Config) -> None:
        """Read what there is, take in the files of a configuration that are not known yet, and sign. Raises
        ArtifactError, BlobError, SigningError and OipError when it cannot be done."""
        ...

    def get(self, model: str, version: str) -> Release:
        """Raises OipError NOT_FOUND."""
        ...

    def of(self, model: str) -> tuple[Release, ...]:
        """Every release of a model, by order."""
        ...

    def standing(self) -> Mapping[str, str]:
        """The version that stands, by model."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """`releases` and `standing` as `Orders` has them."""
        ...

    def differences(self) -> tuple[Difference, ...]:
        """What the configuration names and the store has otherwise; of the last start."""
        ...

    async def add(
        self,
        model: str,
        files: Mapping[str, tuple[str, Content, Content | None]],
        *,
        places: str = ANYWHERE,
        reference: Mapping[str, Reference] | None = None,
        metrics: Mapping[str, float] | None = None,
        source: str,
        version: str | None = None,
    ) -> Release:
        """A new candidate. `files` by slot: format, content, golden vectors; `version` None takes the next
        number. The same version with the same files answers the release that is there; with others it is
        refused."""
        ...

    async def judged(
        self, model: str, version: str, passed: bool, metrics: Mapping[str, float] | None = None
    ) -> Release:
        """The gate's word on a candidate."""
        ...

    async def stand(self, model: str, version: str) -> Release:
        """Make a version the one that serves. One that is older than what stands is ordered back."""
        ...

    async def order_back(self, model: str, version: str) -> Release:
        """Let devices return to a version from any other of the model."""
        ...

    async def withdraw(self, model: str, version: str) -> Release:
        """Offer a version to nobody any more. What stands cannot be withdrawn."""
        ...

    async def keep(self, now: float) -> None:
        """Renew what expires, and sign what could not be signed before; to be called every few minutes."""
        ...
