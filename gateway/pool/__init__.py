"""Accelerator pools: models run by this gateway itself, on Ray.

config      what the file says of a pool; imports no runtime and no Ray
runtimes    what opens a model file and runs it, one file each, found by `kind`
...
"""
