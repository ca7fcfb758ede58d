"""What a .tflite file asks of whoever runs it. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgewire.modelfile import BadModel, read_model

CUSTOM_MARK = "CUSTOM "


class UnreadableModel(ValueError):
    """The file is no TFLite model. One clause."""


@dataclass(frozen=True, slots=True)
class Needs:
    """`operators`: the highest version that the file uses of each builtin one. `custom`: names of custom
    ones. `computed`: datatypes that its nodes work in, by their names in TFLite's schema. `memory_bytes`: the
    file and every tensor that is not in it, which is no less than a runtime takes for the model."""

    operators: Mapping[str, int]
    custom: frozenset[str]
    computed: frozenset[str]
    memory_bytes: int


def needs(content: bytes) -> Needs:
    """Raises UnreadableModel."""
    try:
        facts = read_model(content, any_operator=True)
    except BadModel as fault:
        raise UnreadableModel(str(fault)) from None
    custom = (name.removeprefix(CUSTOM_MARK) for name in facts.operators if name.startswith(CUSTOM_MARK))
    return Needs(facts.versions, frozenset(custom), facts.computed, len(content) + facts.working_bytes)
