"""Where the releases of a state directory and the files that a configuration names differ."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from gateway.control.from_file import Difference, differing
from gateway.control.shelf import Shelf
from gateway.core.config import Config
from gateway.core.config.problems import Finding, Loc
from gateway.store.artifacts import ArtifactError
from gateway.store.database import FILE, open_database
from gateway.store.releases import read_releases, read_standing


def of_releases(config: Config, state_dir: Path) -> list[Finding]:
    """Nothing where no gateway has run on the directory yet; nothing is written there."""
    if not (state_dir / FILE).is_file():
        return []
    try:
        return list(asyncio.run(_compared(config, state_dir)))
    except SQLAlchemyError:
        text = (
            f"what is released is not compared: {state_dir / FILE} cannot be read or is of another version "
            "of Tidegate; `tidegate up` says which"
        )
    except (ArtifactError, OSError) as error:
        text = f"what is released is not compared: {error}"
    return [Finding(("models",), text, at_key=True)]


async def _compared(config: Config, state_dir: Path) -> Iterator[Finding]:
    engine = open_database(state_dir)
    try:
        async with engine.connect() as connection:
            shelf = Shelf(await read_releases(connection), await read_standing(connection))
    finally:
        await engine.dispose()
    found = await differing(config, shelf)
    return (Finding(_where(config, one), f"model '{one.model}': {one.text}") for one in found)


def _where(config: Config, difference: Difference) -> Loc:
    index, model = next((i, m) for i, m in enumerate(config.models) if m.name == difference.model)
    for number, variant in enumerate(model.variants):
        if variant.artifact is not None and variant.endpoint == difference.endpoint:
            return ("models", index, "variants", number, "artifact")
    return ("models", index, "name")
