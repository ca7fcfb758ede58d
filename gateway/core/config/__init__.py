"""The configuration file: its models, and how a file becomes them.

    load     a file or text -> Config, or ConfigError with every problem
    ├── source       YAML events -> a plain tree that knows its positions
    ├── references   ${env:NAME}, ${file:PATH}
    ├── served       what the contract names and this version refuses
    ├── models       frozen pydantic models: types and bounds
    │   ├── endpoints    what every kind of endpoint declares
    │   ├── updates      how a model is kept fit
    │   └── basis        what they have in common
    ├── checks       names, references and sense between the parts
    └── wording      a validator's error -> one sentence
    schema   the models -> JSON Schema
    discovered   a Config and what its endpoints have -> the Config in force

`models` double as the nouns that policy and routing work on, so they are all this package exports;
reading files (`load`) is imported from where it is used.
"""

from gateway.core.config.basis import Location
from gateway.core.config.endpoints import DiscoverConfig, EndpointConfig, PlacedConfig, Price
from gateway.core.config.models import (
    Allow,
    Batching,
    ClassConfig,
    Config,
    GatewayConfig,
    Limits,
    Match,
    ModelConfig,
    PeerConfig,
    PolicyConfig,
    PrivacyConfig,
    Relax,
    Replicas,
    Require,
    Retry,
    Telemetry,
    VariantConfig,
    Weights,
)
from gateway.core.config.updates import (
    DriftConfig,
    GateConfig,
    HaltConfig,
    LabelsConfig,
    RolloutConfig,
    SamplesConfig,
    TrainConfig,
    UpdateConfig,
)

__all__ = [
    "Allow",
    "Batching",
    "ClassConfig",
    "Config",
    "DiscoverConfig",
    "DriftConfig",
    "EndpointConfig",
    "GateConfig",
    "GatewayConfig",
    "HaltConfig",
    "LabelsConfig",
    "Limits",
    "Location",
    "Match",
    "ModelConfig",
    "PeerConfig",
    "PlacedConfig",
    "PolicyConfig",
    "Price",
    "PrivacyConfig",
    "Relax",
    "Replicas",
    "Require",
    "Retry",
    "RolloutConfig",
    "SamplesConfig",
    "Telemetry",
    "TrainConfig",
    "UpdateConfig",
    "VariantConfig",
    "Weights",
]
