from edgewire.v1 import edge_pb2 as _edge_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ForwardRequest(_message.Message):
    __slots__ = ("device", "request", "timeout_ms", "allowed", "traceparent")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    device: str
    request: bytes
    timeout_ms: int
    allowed: str
    traceparent: str
    def __init__(self, device: _Optional[str] = ..., request: _Optional[bytes] = ..., timeout_ms: _Optional[int] = ..., allowed: _Optional[str] = ..., traceparent: _Optional[str] = ...) -> None: ...

class ForwardReply(_message.Message):
    __slots__ = ("response", "reason", "message", "sent", "spans", "took_us")
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    TOOK_US_FIELD_NUMBER: _ClassVar[int]
    response: bytes
    reason: str
    message: str
    sent: bool
    spans: _containers.RepeatedCompositeFieldContainer[_edge_pb2.Span]
    took_us: int
    def __init__(self, response: _Optional[bytes] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., sent: _Optional[bool] = ..., spans: _Optional[_Iterable[_Union[_edge_pb2.Span, _Mapping]]] = ..., took_us: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Fleet(_message.Message):
    __slots__ = ("complete", "devices", "removed")
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    complete: bool
    devices: _containers.RepeatedCompositeFieldContainer[FleetDevice]
    removed: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, complete: _Optional[bool] = ..., devices: _Optional[_Iterable[_Union[FleetDevice, _Mapping]]] = ..., removed: _Optional[_Iterable[str]] = ...) -> None: ...

class FleetDevice(_message.Message):
    __slots__ = ("name", "site", "labels", "credential_sha256", "connected", "drained", "silent_ms", "telemetry", "models", "inflight", "facts", "trials", "spooled")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class FactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    CREDENTIAL_SHA256_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    SILENT_MS_FIELD_NUMBER: _ClassVar[int]
    TELEMETRY_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    INFLIGHT_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    TRIALS_FIELD_NUMBER: _ClassVar[int]
    SPOOLED_FIELD_NUMBER: _ClassVar[int]
    name: str
    site: str
    labels: _containers.ScalarMap[str, str]
    credential_sha256: bytes
    connected: bool
    drained: bool
    silent_ms: int
    telemetry: _edge_pb2.Telemetry
    models: _containers.RepeatedCompositeFieldContainer[_edge_pb2.ModelState]
    inflight: int
    facts: _containers.ScalarMap[str, str]
    trials: _containers.RepeatedCompositeFieldContainer[_edge_pb2.Trial]
    spooled: int
    def __init__(self, name: _Optional[str] = ..., site: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., credential_sha256: _Optional[bytes] = ..., connected: _Optional[bool] = ..., drained: _Optional[bool] = ..., silent_ms: _Optional[int] = ..., telemetry: _Optional[_Union[_edge_pb2.Telemetry, _Mapping]] = ..., models: _Optional[_Iterable[_Union[_edge_pb2.ModelState, _Mapping]]] = ..., inflight: _Optional[int] = ..., facts: _Optional[_Mapping[str, str]] = ..., trials: _Optional[_Iterable[_Union[_edge_pb2.Trial, _Mapping]]] = ..., spooled: _Optional[int] = ...) -> None: ...
