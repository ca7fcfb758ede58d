from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EnrolRequest(_message.Message):
    __slots__ = ("token", "device", "credential_sha256")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    CREDENTIAL_SHA256_FIELD_NUMBER: _ClassVar[int]
    token: str
    device: str
    credential_sha256: bytes
    def __init__(self, token: _Optional[str] = ..., device: _Optional[str] = ..., credential_sha256: _Optional[bytes] = ...) -> None: ...

class EnrolReply(_message.Message):
    __slots__ = ("device", "site", "labels")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    device: str
    site: str
    labels: _containers.ScalarMap[str, str]
    def __init__(self, device: _Optional[str] = ..., site: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ...) -> None: ...

class DeviceMessage(_message.Message):
    __slots__ = ("hello", "heartbeat", "answer", "data")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    heartbeat: Heartbeat
    answer: Answer
    data: Data
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., answer: _Optional[_Union[Answer, _Mapping]] = ..., data: _Optional[_Union[Data, _Mapping]] = ...) -> None: ...

class HubMessage(_message.Message):
    __slots__ = ("welcome", "desired", "infer", "data", "cancel")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    DESIRED_FIELD_NUMBER: _ClassVar[int]
    INFER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    desired: Desired
    infer: Infer
    data: Data
    cancel: Cancel
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., desired: _Optional[_Union[Desired, _Mapping]] = ..., infer: _Optional[_Union[Infer, _Mapping]] = ..., data: _Optional[_Union[Data, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("agent_version", "facts")
    class FactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    agent_version: str
    facts: _containers.ScalarMap[str, str]
    def __init__(self, agent_version: _Optional[str] = ..., facts: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("gateway", "heartbeat_ms", "max_message_bytes")
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    gateway: str
    heartbeat_ms: int
    max_message_bytes: int
    def __init__(self, gateway: _Optional[str] = ..., heartbeat_ms: _Optional[int] = ..., max_message_bytes: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("telemetry", "models")
    TELEMETRY_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    telemetry: Telemetry
    models: _containers.RepeatedCompositeFieldContainer[ModelState]
    def __init__(self, telemetry: _Optional[_Union[Telemetry, _Mapping]] = ..., models: _Optional[_Iterable[_Union[ModelState, _Mapping]]] = ...) -> None: ...

class Telemetry(_message.Message):
    __slots__ = ("cpu_percent", "memory_percent", "temperature_c", "battery_percent", "charging", "throttled", "power_w", "inflight")
    CPU_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_PERCENT_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_C_FIELD_NUMBER: _ClassVar[int]
    BATTERY_PERCENT_FIELD_NUMBER: _ClassVar[int]
    CHARGING_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_FIELD_NUMBER: _ClassVar[int]
    POWER_W_FIELD_NUMBER: _ClassVar[int]
    INFLIGHT_FIELD_NUMBER: _ClassVar[int]
    cpu_percent: float
    memory_percent: float
    temperature_c: float
    battery_percent: float
    charging: bool
    throttled: bool
    power_w: float
    inflight: int
    def __init__(self, cpu_percent: _Optional[float] = ..., memory_percent: _Optional[float] = ..., temperature_c: _Optional[float] = ..., battery_percent: _Optional[float] = ..., charging: _Optional[bool] = ..., throttled: _Optional[bool] = ..., power_w: _Optional[float] = ..., inflight: _Optional[int] = ...) -> None: ...

class ModelState(_message.Message):
    __slots__ = ("model", "version", "digest", "state", "reason", "active_digest", "active_version", "delegate", "delegated_nodes", "nodes", "degraded", "metadata", "config")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[ModelState.State]
        FETCHING: _ClassVar[ModelState.State]
        TRYING: _ClassVar[ModelState.State]
        ACTIVE: _ClassVar[ModelState.State]
        FAILED: _ClassVar[ModelState.State]
    STATE_UNSPECIFIED: ModelState.State
    FETCHING: ModelState.State
    TRYING: ModelState.State
    ACTIVE: ModelState.State
    FAILED: ModelState.State
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_VERSION_FIELD_NUMBER: _ClassVar[int]
    DELEGATE_FIELD_NUMBER: _ClassVar[int]
    DELEGATED_NODES_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    digest: str
    state: ModelState.State
    reason: str
    active_digest: str
    active_version: str
    delegate: str
    delegated_nodes: int
    nodes: int
    degraded: str
    metadata: bytes
    config: bytes
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., digest: _Optional[str] = ..., state: _Optional[_Union[ModelState.State, str]] = ..., reason: _Optional[str] = ..., active_digest: _Optional[str] = ..., active_version: _Optional[str] = ..., delegate: _Optional[str] = ..., delegated_nodes: _Optional[int] = ..., nodes: _Optional[int] = ..., degraded: _Optional[str] = ..., metadata: _Optional[bytes] = ..., config: _Optional[bytes] = ...) -> None: ...

class Desired(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[DesiredModel]
    def __init__(self, models: _Optional[_Iterable[_Union[DesiredModel, _Mapping]]] = ...) -> None: ...

class DesiredModel(_message.Message):
    __slots__ = ("model", "version", "digest", "size", "golden_digest", "golden_size", "batch_max_size", "batch_delay_ms")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    GOLDEN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    GOLDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    BATCH_MAX_SIZE_FIELD_NUMBER: _ClassVar[int]
    BATCH_DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    digest: str
    size: int
    golden_digest: str
    golden_size: int
    batch_max_size: int
    batch_delay_ms: float
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., digest: _Optional[str] = ..., size: _Optional[int] = ..., golden_digest: _Optional[str] = ..., golden_size: _Optional[int] = ..., batch_max_size: _Optional[int] = ..., batch_delay_ms: _Optional[float] = ...) -> None: ...

class Infer(_message.Message):
    __slots__ = ("id", "size", "timeout_ms", "allowed", "traceparent")
    ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    id: int
    size: int
    timeout_ms: int
    allowed: str
    traceparent: str
    def __init__(self, id: _Optional[int] = ..., size: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., allowed: _Optional[str] = ..., traceparent: _Optional[str] = ...) -> None: ...

class Data(_message.Message):
    __slots__ = ("id", "piece")
    ID_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    id: int
    piece: bytes
    def __init__(self, id: _Optional[int] = ..., piece: _Optional[bytes] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("id", "size", "reason", "message", "spans")
    ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    id: int
    size: int
    reason: str
    message: str
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    def __init__(self, id: _Optional[int] = ..., size: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("name", "began_us", "took_us", "attributes")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    BEGAN_US_FIELD_NUMBER: _ClassVar[int]
    TOOK_US_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    began_us: int
    took_us: int
    attributes: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., began_us: _Optional[int] = ..., took_us: _Optional[int] = ..., attributes: _Optional[_Mapping[str, str]] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("digest", "offset")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    digest: str
    offset: int
    def __init__(self, digest: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("piece",)
    PIECE_FIELD_NUMBER: _ClassVar[int]
    piece: bytes
    def __init__(self, piece: _Optional[bytes] = ...) -> None: ...
