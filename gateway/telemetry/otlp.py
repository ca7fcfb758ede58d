"""OTLP over HTTP: one POST at a time to one receiver, with bounded waits and quiet logs.

Used from an exporter's own thread only. Every socket wait is bounded; proxies of the environment
are not used, redirects not followed, answers read up to a few kilobytes. A receiver that stops or
starts working is logged once per change, not once per POST. Headers come from the environment,
because they hold credentials; neither their names nor their values are logged.
"""

from __future__ import annotations

import http.client
import logging
import os
import re
from typing import NamedTuple
from urllib.parse import unquote_to_bytes, urlsplit

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from gateway.telemetry.names import SERVICE

log = logging.getLogger(__name__)

TRACES_PATH = "/v1/traces"
METRICS_PATH = "/v1/metrics"
HEADERS_VARIABLE = "OTEL_EXPORTER_OTLP_HEADERS"
"""OpenTelemetry's variable: `name=value,name2=value2`, percent-encoded."""
TIMEOUT_S = 3.0
"""Longest wait for a connection, and for each piece of an answer."""
_MAX_ANSWER_BYTES = 65536
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HEADER_VALUE = re.compile(rb"[\x20-\x7e\x80-\xff]*")
_RETRYABLE = frozenset({429, 502, 503, 504})


class Sent(NamedTuple):
    """What came of a POST. `retry`: the same bytes may succeed later. `body` is the receiver's answer."""

    ok: bool
    retry: bool
    body: bytes = b""


class Poster:
    """Sends serialized OTLP messages to `base_url` + `path`, with the environment's headers of now.

    Raises ValueError for an address that is not an http or https URL with a host.
    """

    def __init__(self, base_url: str, path: str, what: str) -> None:
        url = urlsplit(base_url)
        if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
            raise ValueError(f"not the base URL of an OTLP/HTTP receiver: {base_url!r}")
        self._https = url.scheme == "https"
        self._host = url.hostname
        self._port = url.port
        self._path = url.path.rstrip("/") + path
        self._what = what
        self._headers = {
            **_given_headers(os.environ.get(HEADERS_VARIABLE, "")),
            "content-type": b"application/x-protobuf",
        }
        self._connection: http.client.HTTPConnection | None = None
        self._working: bool | None = None

    def post(self, message: bytes, timeout_s: float = TIMEOUT_S) -> Sent:
        """Send one message. Never raises for a receiver that is gone, slow or wrong."""
        reused = self._connection is not None
        sent, why = self._attempt(message, timeout_s)
        if why == "closed" and reused:
            # The receiver closed a connection that lay idle; only a new one says whether it works.
            sent, why = self._attempt(message, timeout_s)
        self._note(sent.ok, why)
        return sent

    def _attempt(self, message: bytes, timeout_s: float) -> tuple[Sent, str]:
        try:
            connection = self._connect(timeout_s)
            connection.request("POST", self._path, message, self._headers)
            response = connection.getresponse()
            body = response.read(_MAX_ANSWER_BYTES)
            if not response.isclosed():
                self.close()
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            self.close()
            return Sent(ok=False, retry=True), "closed"
        except TimeoutError:
            self.close()
            return Sent(ok=False, retry=True), "no answer in time"
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            return Sent(ok=False, retry=True), type(error).__name__
        ok = 200 <= response.status < 300
        return Sent(ok, response.status in _RETRYABLE, body), f"HTTP {response.status}"

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._connection is None:
            kind = http.client.HTTPSConnection if self._https else http.client.HTTPConnection
            self._connection = kind(self._host, self._port, timeout=timeout_s)
        elif self._connection.sock is not None:
            self._connection.sock.settimeout(timeout_s)
        return self._connection

    def _note(self, ok: bool, why: str) -> None:
        if ok and self._working is False:
            log.info("OTLP export of %s to %s works again", self._what, self._host)
        elif not ok and self._working is not False:
            log.warning(
                "OTLP export of %s to %s fails (%s); requests are not affected", self._what, self._host, why
            )
        self._working = ok

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _given_headers(text: str) -> dict[str, bytes]:
    """The headers of OTEL_EXPORTER_OTLP_HEADERS, names in lower case. An entry that is none is left
    out and logged by its place alone: all of it may be a secret."""
    headers: dict[str, bytes] = {}
    for place, entry in enumerate(text.split(","), 1):
        if not entry.strip():
            continue
        name, equals, value = entry.partition("=")
        name, decoded = name.strip(), unquote_to_bytes(value.strip())
        if equals and _HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(decoded):
            headers[name.lower()] = decoded
        else:
            log.warning("entry %d of %s is not NAME=VALUE and is left out", place, HEADERS_VARIABLE)
    return headers


def key_value(key: str, value: str | int | float) -> KeyValue:
    if isinstance(value, str):
        return KeyValue(key=key, value=AnyValue(string_value=value))
    if isinstance(value, float):
        return KeyValue(key=key, value=AnyValue(double_value=value))
    return KeyValue(key=key, value=AnyValue(int_value=value))


def resource(instance: str, version: str) -> Resource:
    """Who exports: the service's name and version, and this instance of it."""
    return Resource(
        attributes=[
            key_value("service.name", SERVICE),
            key_value("service.version", version),
            key_value("service.instance.id", instance),
        ]
    )
