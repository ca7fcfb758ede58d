"""The demo: real Tritons on this machine, the digits model they serve, and the scenes played on them.

`triton` starts the `tritonserver` of the nvidia-pytriton wheel and is the project's only launcher;
tests use it too. `digits` trains the model and lays it out for a Triton.
"""
