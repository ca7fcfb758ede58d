"""The configuration file: its models, and how a file becomes them.

`models` are frozen pydantic models and double as the nouns that policy and routing work on.
`load` reads YAML into them and reports every mistake with file, line and column.
"""

from gateway.core.config.models import (
    Config,
    EndpointConfig,
    GatewayConfig,
    Limits,
    Location,
    Match,
    ModelConfig,
    PolicyConfig,
    Price,
    PrivacyConfig,
    Relax,
    Replicas,
    Require,
    Retry,
    Telemetry,
    VariantConfig,
    Weights,
)

__all__ = [
    "Config",
    "EndpointConfig",
    "GatewayConfig",
    "Limits",
    "Location",
    "Match",
    "ModelConfig",
    "PolicyConfig",
    "Price",
    "PrivacyConfig",
    "Relax",
    "Replicas",
    "Require",
    "Retry",
    "Telemetry",
    "VariantConfig",
    "Weights",
]
