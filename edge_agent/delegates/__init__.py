"""What may run a model's nodes: one file each, with its `kind`, found by looking.

    external   a shared library with TFLite's public delegate ABI, such as an accelerator's driver
    xnnpack    XNNPACK, which tflite-runtime carries
    builtin    tflite-runtime's own kernels; they take every node that it knows

A chain of `DelegateSpec` is tried in order, and the first that works serves. What was wanted before it
and did not work is kept as one sentence, and the nodes that a delegate took are counted, not believed.
`probe` says how each does on this machine; it loads libraries in a process of its own, because a
driver's library may crash the process that loads it.
"""

from edge_agent.delegates._discovery import kinds
from edge_agent.delegates._interface import DEFAULT_CHAIN, Delegate, DelegateFailed, DelegateSpec
from edge_agent.delegates._nodes import count_taken
from edge_agent.delegates._probing import probe

__all__ = ["DEFAULT_CHAIN", "Delegate", "DelegateFailed", "DelegateSpec", "count_taken", "kinds", "probe"]
