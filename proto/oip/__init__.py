"""The Open Inference Protocol (KServe v2) without I/O: scanning, validation, codecs, batching, reasons.

Shared by the gateway and the edge agent, so it imports neither. Only `codec` imports
tritonclient's protobuf stubs; everything else works on bytes.
"""
