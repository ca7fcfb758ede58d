"""What a device lacks for a model, by the facts that it tells of itself. PURE.

The facts that count: `runtime` ("tflite-runtime 2.14.0"), `memory_mb` (all that it has), `model_memory_mb`
(what it lets one model have, its runtime included) and `delegates` (kinds, separated by commas; a
delegate "external" may bring custom operators). What a device does not tell it is not known to have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from edgewire.operators import CUSTOM, VERSIONS
from gateway.compat.needs import Needs

KNOWN_RUNTIME = re.compile(r"tflite-runtime 2\.14\..*")
"""The runtime whose operators are in edgewire.operators."""
NOT_COMPUTED = frozenset({"FLOAT16", "INT4"})
"""Datatypes in which that runtime holds weights and has no arithmetic. Measured, as the operators are."""
RUNTIME_MB = 400
"""Address space that the runtime takes before it has a model."""


def check(needs: Needs, facts: Mapping[str, str]) -> list[str]:
    """What a device lacks, a clause each; empty for one that can run the model."""
    runtime = facts.get("runtime", "")
    if not runtime:
        return ["the device does not say which runtime it has"]
    if KNOWN_RUNTIME.fullmatch(runtime) is None:
        return [f"what the runtime {runtime[:64]!r} can do is not known"]
    return [*_operators(needs, facts), *_precision(needs), *_memory(needs, facts)]


def _operators(needs: Needs, facts: Mapping[str, str]) -> Iterator[str]:
    for name, version in sorted(needs.operators.items()):
        served = VERSIONS.get(name)
        if served is None:
            yield f"operator {name} is missing"
        elif version not in served:
            yield f"operator {name} has version {served.stop - 1}, and the model needs {version}"
    if "external" not in facts.get("delegates", "").split(","):
        for name in sorted(needs.custom - CUSTOM):
            yield f"custom operator {name[:64]} is missing"


def _precision(needs: Needs) -> Iterator[str]:
    for name in sorted(needs.computed & NOT_COMPUTED):
        yield f"precision {name.lower()} is missing"


def _memory(needs: Needs, facts: Mapping[str, str]) -> Iterator[str]:
    wanted = -(-needs.memory_bytes // 2**20)
    for fact, taken in (("memory_mb", 0), ("model_memory_mb", RUNTIME_MB)):
        told = facts.get(fact, "")
        if told.isascii() and told.isdigit() and wanted + taken > int(told[:12]):
            yield f"memory: the model needs {wanted} MiB, and the device has {max(0, int(told[:12]) - taken)} MiB for it"
            return
