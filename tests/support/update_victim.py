"""A control that carries out one update, in a process to be killed: `python -m tests.support.update_victim
FOLDER`. It prints the phase whenever that changes, and "over" at the end."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from gateway.control.updates import Updates
from gateway.store.database import migrate, open_database
from tests.support.update_world import World, config


async def main(folder: Path) -> None:
    world = World(folder / "ledger.jsonl")
    migrate(folder)
    engine = open_database(folder)
    clock = folder / "clock"
    world.now = float(clock.read_text()) if clock.exists() else 1000.0
    updates = Updates(engine, config(), folder, world.ports(), lambda: world.now)
    await updates.resume_all()
    said = ""
    while True:
        world.now += 1
        shorter = clock.with_suffix(".new")
        shorter.write_text(str(world.now))
        shorter.replace(clock)
        await updates.tick()
        world.rollouts.go_on()
        await asyncio.sleep(0.001)
        views = updates.views()["updates"]
        if views and views[0]["phase"] != said:
            said = views[0]["phase"]
            print(said, flush=True)
        if views and not views[0]["open"]:
            break
    await updates.close()
    await engine.dispose()
    print("over", flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
