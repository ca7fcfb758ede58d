"""Ray, imported so that its own deprecation warnings fail no test. Import this before anything that uses Ray."""

from __future__ import annotations

import warnings

from gateway.serve.environment import prepare

prepare()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import ray
    from ray import serve

__all__ = ["ray", "serve"]
