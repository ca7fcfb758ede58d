"""Tidegate's gateway: one Open Inference Protocol address, and a policy that decides who answers.

The rooms and what may import what are listed in `pyproject.toml` under `[tool.importlinter]`;
docs/architecture.md draws them.
"""

__version__ = "0.1.0"
