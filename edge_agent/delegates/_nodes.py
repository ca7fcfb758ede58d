"""How many of a model's nodes a delegate really took."""

from __future__ import annotations

from typing import Any

_DELEGATE = "DELEGATE"


def count_taken(interpreter: Any) -> tuple[int, int]:
    """Nodes that delegates took, and nodes of the model, in its first subgraph.

    The interpreter keeps the nodes that a delegate replaced and appends the DELEGATE nodes. A node is
    taken when a walk from a DELEGATE's outputs back to its inputs meets it.
    """
    ops = interpreter._get_ops_details()
    own = [op for op in ops if op["op_name"] != _DELEGATE]
    maker = {int(tensor): at for at, op in enumerate(own) for tensor in op["outputs"]}
    taken: set[int] = set()
    for op in ops:
        if op["op_name"] != _DELEGATE:
            continue
        given = {int(tensor) for tensor in op["inputs"]}
        left = [int(tensor) for tensor in op["outputs"]]
        while left:
            tensor = left.pop()
            if tensor in given or tensor not in maker or maker[tensor] in taken:
                continue
            taken.add(maker[tensor])
            left += [int(source) for source in own[maker[tensor]]["inputs"]]
    return len(taken), len(own)
