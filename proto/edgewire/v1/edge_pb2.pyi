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
    __slots__ = ("device", "site", "labels", "root")
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
    ROOT_FIELD_NUMBER: _ClassVar[int]
    device: str
    site: str
    labels: _containers.ScalarMap[str, str]
    root: bytes
    def __init__(self, device: _Optional[str] = ..., site: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., root: _Optional[bytes] = ...) -> None: ...

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
    __slots__ = ("gateway", "heartbeat_ms", "max_message_bytes", "place")
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    gateway: str
    heartbeat_ms: int
    max_message_bytes: int
    place: Place
    def __init__(self, gateway: _Optional[str] = ..., heartbeat_ms: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., place: _Optional[_Union[Place, _Mapping]] = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("tier", "region", "site", "device")
    TIER_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    tier: str
    region: str
    site: str
    device: str
    def __init__(self, tier: _Optional[str] = ..., region: _Optional[str] = ..., site: _Optional[str] = ..., device: _Optional[str] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("telemetry", "models", "trials", "spooled")
    TELEMETRY_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    TRIALS_FIELD_NUMBER: _ClassVar[int]
    SPOOLED_FIELD_NUMBER: _ClassVar[int]
    telemetry: Telemetry
    models: _containers.RepeatedCompositeFieldContainer[ModelState]
    trials: _containers.RepeatedCompositeFieldContainer[Trial]
    spooled: int
    def __init__(self, telemetry: _Optional[_Union[Telemetry, _Mapping]] = ..., models: _Optional[_Iterable[_Union[ModelState, _Mapping]]] = ..., trials: _Optional[_Iterable[_Union[Trial, _Mapping]]] = ..., spooled: _Optional[int] = ...) -> None: ...

class Trial(_message.Message):
    __slots__ = ("model", "version", "digest", "state", "reason", "latency_p50_ms", "latency_p95_ms", "runs", "active_p50_ms", "active_p95_ms")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LATENCY_P50_MS_FIELD_NUMBER: _ClassVar[int]
    LATENCY_P95_MS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_P50_MS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_P95_MS_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    digest: str
    state: ModelState.State
    reason: str
    latency_p50_ms: float
    latency_p95_ms: float
    runs: int
    active_p50_ms: float
    active_p95_ms: float
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., digest: _Optional[str] = ..., state: _Optional[_Union[ModelState.State, str]] = ..., reason: _Optional[str] = ..., latency_p50_ms: _Optional[float] = ..., latency_p95_ms: _Optional[float] = ..., runs: _Optional[int] = ..., active_p50_ms: _Optional[float] = ..., active_p95_ms: _Optional[float] = ...) -> None: ...

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
    __slots__ = ("model", "version", "digest", "state", "reason", "active_digest", "active_version", "delegate", "delegated_nodes", "nodes", "degraded", "metadata", "config", "previous_digest", "previous_version")
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
    PREVIOUS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_VERSION_FIELD_NUMBER: _ClassVar[int]
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
    previous_digest: str
    previous_version: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., digest: _Optional[str] = ..., state: _Optional[_Union[ModelState.State, str]] = ..., reason: _Optional[str] = ..., active_digest: _Optional[str] = ..., active_version: _Optional[str] = ..., delegate: _Optional[str] = ..., delegated_nodes: _Optional[int] = ..., nodes: _Optional[int] = ..., degraded: _Optional[str] = ..., metadata: _Optional[bytes] = ..., config: _Optional[bytes] = ..., previous_digest: _Optional[str] = ..., previous_version: _Optional[str] = ...) -> None: ...

class Desired(_message.Message):
    __slots__ = ("models", "trials", "report_ms")
    MODELS_FIELD_NUMBER: _ClassVar[int]
    TRIALS_FIELD_NUMBER: _ClassVar[int]
    REPORT_MS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[DesiredModel]
    trials: _containers.RepeatedCompositeFieldContainer[DesiredModel]
    report_ms: int
    def __init__(self, models: _Optional[_Iterable[_Union[DesiredModel, _Mapping]]] = ..., trials: _Optional[_Iterable[_Union[DesiredModel, _Mapping]]] = ..., report_ms: _Optional[int] = ...) -> None: ...

class DesiredModel(_message.Message):
    __slots__ = ("model", "version", "digest", "size", "golden_digest", "golden_size", "batch_max_size", "batch_delay_ms", "target", "golden_target", "gather")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    GOLDEN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    GOLDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    BATCH_MAX_SIZE_FIELD_NUMBER: _ClassVar[int]
    BATCH_DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    GOLDEN_TARGET_FIELD_NUMBER: _ClassVar[int]
    GATHER_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    digest: str
    size: int
    golden_digest: str
    golden_size: int
    batch_max_size: int
    batch_delay_ms: float
    target: str
    golden_target: str
    gather: Gather
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., digest: _Optional[str] = ..., size: _Optional[int] = ..., golden_digest: _Optional[str] = ..., golden_size: _Optional[int] = ..., batch_max_size: _Optional[int] = ..., batch_delay_ms: _Optional[float] = ..., target: _Optional[str] = ..., golden_target: _Optional[str] = ..., gather: _Optional[_Union[Gather, _Mapping]] = ...) -> None: ...

class Gather(_message.Message):
    __slots__ = ("allowed", "signals", "samples")
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    SIGNALS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    allowed: str
    signals: _containers.RepeatedCompositeFieldContainer[Signal]
    samples: Samples
    def __init__(self, allowed: _Optional[str] = ..., signals: _Optional[_Iterable[_Union[Signal, _Mapping]]] = ..., samples: _Optional[_Union[Samples, _Mapping]] = ...) -> None: ...

class Signal(_message.Message):
    __slots__ = ("name", "edges")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EDGES_FIELD_NUMBER: _ClassVar[int]
    name: str
    edges: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, name: _Optional[str] = ..., edges: _Optional[_Iterable[float]] = ...) -> None: ...

class Samples(_message.Message):
    __slots__ = ("training", "max_per_day", "confidence_below")
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    MAX_PER_DAY_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_BELOW_FIELD_NUMBER: _ClassVar[int]
    training: Place
    max_per_day: int
    confidence_below: float
    def __init__(self, training: _Optional[_Union[Place, _Mapping]] = ..., max_per_day: _Optional[int] = ..., confidence_below: _Optional[float] = ...) -> None: ...

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

class MetadataRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeliverRequest(_message.Message):
    __slots__ = ("spool", "records")
    SPOOL_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    spool: str
    records: _containers.RepeatedCompositeFieldContainer[Record]
    def __init__(self, spool: _Optional[str] = ..., records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ...) -> None: ...

class DeliverReply(_message.Message):
    __slots__ = ("counted", "pause_ms")
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    PAUSE_MS_FIELD_NUMBER: _ClassVar[int]
    counted: int
    pause_ms: int
    def __init__(self, counted: _Optional[int] = ..., pause_ms: _Optional[int] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("number", "age_ms", "window", "sample", "gap", "telemetry")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    TELEMETRY_FIELD_NUMBER: _ClassVar[int]
    number: int
    age_ms: int
    window: Window
    sample: Sample
    gap: Gap
    telemetry: Telemetry
    def __init__(self, number: _Optional[int] = ..., age_ms: _Optional[int] = ..., window: _Optional[_Union[Window, _Mapping]] = ..., sample: _Optional[_Union[Sample, _Mapping]] = ..., gap: _Optional[_Union[Gap, _Mapping]] = ..., telemetry: _Optional[_Union[Telemetry, _Mapping]] = ...) -> None: ...

class Gap(_message.Message):
    __slots__ = ("first",)
    FIRST_FIELD_NUMBER: _ClassVar[int]
    first: int
    def __init__(self, first: _Optional[int] = ...) -> None: ...

class Window(_message.Message):
    __slots__ = ("model", "version", "digest", "took_ms", "answered", "failed", "latency", "signals")
    class FailedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class LatencyEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    TOOK_MS_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    LATENCY_FIELD_NUMBER: _ClassVar[int]
    SIGNALS_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    digest: str
    took_ms: int
    answered: int
    failed: _containers.ScalarMap[str, int]
    latency: _containers.ScalarMap[int, int]
    signals: _containers.RepeatedCompositeFieldContainer[Counted]
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., digest: _Optional[str] = ..., took_ms: _Optional[int] = ..., answered: _Optional[int] = ..., failed: _Optional[_Mapping[str, int]] = ..., latency: _Optional[_Mapping[int, int]] = ..., signals: _Optional[_Iterable[_Union[Counted, _Mapping]]] = ...) -> None: ...

class Counted(_message.Message):
    __slots__ = ("name", "bins", "counts")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BINS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    bins: int
    counts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., bins: _Optional[int] = ..., counts: _Optional[_Iterable[int]] = ...) -> None: ...

class Sample(_message.Message):
    __slots__ = ("model", "version", "digest", "request", "confidence", "allowed")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    digest: str
    request: bytes
    confidence: float
    allowed: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., digest: _Optional[str] = ..., request: _Optional[bytes] = ..., confidence: _Optional[float] = ..., allowed: _Optional[str] = ...) -> None: ...
