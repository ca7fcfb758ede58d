"""What the processes of a gateway hold while they are under load: samples, a judgement and a drawing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from xml.sax.saxutils import escape

import httpx
import psutil

SLACK = {"rss_mb": 5.0, "fds": 5.0, "threads": 5.0, "inflight": 0.0}
"""By how many per cent the last quarter's median may be above the second's.

RSS: of a process of 200 MB it is 10 MB, which over the 50,000 requests between the two quarters' middles are 200 bytes
each: less than one task, call or record that stays behind, and more than an allocator's arenas wander. The first quarter
is left out, in which pools, caches and the ring of decision records fill. Descriptors and threads follow the number of
callers, which does not change. A request counted as in flight stays so for good."""
LEAST = {"rss_mb": 4.0, "fds": 8.0, "threads": 3.0, "inflight": 64.0}
"""And what any quarter may have more than another, in a process that has little: callers who leave open connections
anew, and a pool of threads grows by one now and then. In flight are the callers' requests themselves."""


INFLIGHT = "tidegate_inflight"


@dataclass(frozen=True)
class Sample:
    """`at_s` since the start, `asked` requests until then; by process: rss_mb, fds, threads, inflight."""

    at_s: float
    asked: int
    held: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Verdict:
    """One figure of one process: its medians, and whether they are as they should be."""

    process: str
    figure: str
    second: float
    last: float

    @property
    def grew_percent(self) -> float:
        return 100 * (self.last - self.second) / self.second if self.second else 0.0

    @property
    def flat(self) -> bool:
        grew = self.last - self.second
        return grew <= max(LEAST[self.figure], self.second * SLACK[self.figure] / 100)


def held_by(processes: Sequence[psutil.Process]) -> dict[str, float]:
    """What they hold together; those that are gone hold nothing."""
    found = {"rss_mb": 0.0, "fds": 0.0, "threads": 0.0}
    for process in processes:
        try:
            with process.oneshot():
                rss, fds, threads = process.memory_info().rss, process.num_fds(), process.num_threads()
        except psutil.NoSuchProcess:
            continue
        found["rss_mb"] += rss / 2**20
        found["fds"] += fds
        found["threads"] += threads
    return found


async def counted(client: httpx.AsyncClient, metrics: str, name: str, label: str = "") -> float:
    """A metric of the gateway's, added up; of the rows that have this label alone."""
    text = (await client.get(f"http://{metrics}/metrics")).text
    rows = [line for line in text.splitlines() if line.startswith(name) and label in line]
    return sum(float(row.split()[-1]) for row in rows)


async def watch(
    processes: Callable[[], Mapping[str, Sequence[psutil.Process]]],
    metrics: str,
    asked: Callable[[], int],
    every_s: float,
    samples: list[Sample],
) -> None:
    """Add samples until cancelled."""
    began = time.monotonic()
    async with httpx.AsyncClient(timeout=30) as client:
        while True:
            held = {name: held_by(found) for name, found in processes().items()}
            held["data_plane"]["inflight"] = await counted(client, metrics, INFLIGHT)
            samples.append(Sample(time.monotonic() - began, asked(), held))
            await asyncio.sleep(every_s)


def judge(samples: Sequence[Sample]) -> list[Verdict]:
    """The medians of the second and of the last quarter of the requests, figure by figure. Raises ValueError for
    fewer than two samples in either."""
    total = samples[-1].asked
    second = [s for s in samples if total / 4 <= s.asked < total / 2]
    last = [s for s in samples if s.asked >= total * 3 / 4]
    if min(len(second), len(last)) < 2:
        raise ValueError("too few samples: the run was too short")
    return [
        Verdict(
            process,
            figure,
            median(s.held[process][figure] for s in second),
            median(s.held[process][figure] for s in last),
        )
        for process, figures in samples[-1].held.items()
        for figure in figures
    ]


WIDTH, HEIGHT, LEFT, TOP = 900, 180, 70, 34
COLOURS = ("#1b6ca8", "#c44536", "#3a7d44", "#8e5ea2", "#b8860b")


def drawing(samples: Sequence[Sample]) -> str:
    """An SVG: a panel for each figure, a line for each process, over the requests that were asked."""
    figures = ("rss_mb", "fds", "threads", "inflight")
    titles = ("memory (RSS), MB", "open descriptors", "threads", "requests in flight")
    names = list(samples[-1].held)
    total = max(1, samples[-1].asked)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH + LEFT + 130}" '
        f'height="{len(figures) * (HEIGHT + TOP) + 30}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for row, (figure, title) in enumerate(zip(figures, titles, strict=True)):
        top = row * (HEIGHT + TOP) + TOP
        most = max((s.held[n].get(figure, 0) for s in samples for n in names), default=0) * 1.1 or 1
        parts.append(f'<text x="{LEFT}" y="{top - 8}" font-weight="bold">{title}</text>')
        parts.append(
            f'<rect x="{LEFT}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>'
        )
        for share in (0, 0.5, 1):
            y = top + HEIGHT * (1 - share)
            parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">{most * share:.0f}</text>')
        for quarter in (0.25, 0.5, 0.75):
            x = LEFT + WIDTH * quarter
            parts.append(f'<line x1="{x}" y1="{top}" x2="{x}" y2="{top + HEIGHT}" stroke="#ddd"/>')
        for name, colour in zip(names, COLOURS, strict=False):
            points = [
                (LEFT + WIDTH * s.asked / total, top + HEIGHT * (1 - s.held[name][figure] / most))
                for s in samples
                if figure in s.held[name]
            ]
            if not points:
                continue
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
            x, y = points[-1]
            parts.append(f'<text x="{x + 6:.0f}" y="{y + 4:.0f}" fill="{colour}">{escape(name)}</text>')
    below = len(figures) * (HEIGHT + TOP) + 18
    parts.append(f'<text x="{LEFT}" y="{below}">0</text>')
    parts.append(f'<text x="{LEFT + WIDTH}" y="{below}" text-anchor="end">{total} requests</text></svg>')
    return "\n".join(parts)
