"""uvicorn's HTTP/1.1 connection, made to leave bodies unread and to answer its own errors in JSON.

- Reading pauses as soon as a request's head is in; it resumes when the application asks for the
  body. What one read from the socket brought along with the head is all that is ever taken before.
- A head has bounded size and time. Whatever the parser refuses is answered 400 with
  `{"error": ...}`; when an earlier answer is still under way, that one goes out instead, requests
  that wait behind it are dropped, and the connection closes after it.
- A caller that leaves is noticed while requests of its wait behind one that runs, unless they are
  many or the last one's body is held back.
- An error that leaves data unread is sent, the sending side is closed, and the connection
  lingers without reading: closing at once would reset it and could take the answer away from a
  caller that is still sending.
- An offer to upgrade is declined by answering in HTTP/1.1. The parser takes it for accepted and stops
  behind the head, so a new parser is told of the body's framing and reads on.
- Trailer fields are dropped, so that nothing can come after a body and pass for a header.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from oip.errors import error_body
from oip.reasons import STATUS, Reason

ARRIVAL = "tidegate.arrival"
"""Key of a request's `Arrival` in its scope's `extensions`."""
MAX_HEAD_BYTES = 64 * 1024
_FRAMING = (b"content-length", b"transfer-encoding")
MAX_WAITING = 16
"""So many pipelined requests may wait on a connection before it is read no further."""
LINGER_S = 2.0


class Arrival:
    """What an application may know of a request's arrival, and do about it, beyond ASGI."""

    def __init__(self, protocol: PatientProtocol) -> None:
        self._protocol = protocol
        self.complete = False
        """Whether the whole message, its body included, has been received."""

    def close_sending(self) -> None:
        """Nothing more is sent or read on the connection; the caller sees the end of the answer."""
        self._protocol.close_sending()

    @property
    def gone(self) -> bool:
        """Whether the connection has ended already."""
        return self._protocol.transport.is_closing()

    def abort(self) -> None:
        """Ends the connection; `receive` then says so."""
        self._protocol.transport.abort()


class PatientProtocol(HttpToolsProtocol):
    """One connection. `head_timeout_s` bounds how long a request's head may take to arrive."""

    head_timeout_s: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.access_log = False
        self._arrival = Arrival(self)
        self._answering: RequestResponseCycle | None = None
        """What is being answered; `cycle` is what arrived last."""
        self._in_head = False
        self._head_is_new = False
        self._head_bytes = 0
        self._read_bytes = 0
        self._fault = ""
        self._deaf = False
        self._upgrade_offered = False
        self._retelling = False
        self._timer: asyncio.TimerHandle | None = None
        self.closed: asyncio.Future[None] = self.loop.create_future()
        """Done when the connection has ended."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()
        self.closed.set_result(None)

    def last_answer(self) -> None:
        """An answer under way is the last one on this connection."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._read_bytes = len(data)
        self._head_is_new = False
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            why = self._fault or f"the request is not well-formed HTTP/1.1: {error}"
            self._refuse(Reason.MALFORMED, why)
            return
        if self._in_head:
            self._head_bytes += self._read_bytes
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(Reason.MALFORMED, f"the request's head is larger than {MAX_HEAD_BYTES} bytes")
        elif self._head_is_new:
            self._hold()
        if 0 < len(self.pipeline) < MAX_WAITING and (self._in_head or self._arrival.complete):
            # uvicorn has stopped reading, and so would not see the caller leave.
            self.flow.resume_reading()

    def _feed(self, data: bytes) -> None:
        while True:
            parser = self.parser
            assert parser is not None
            try:
                parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as stopped:
                if not self._upgrade_offered:
                    # CONNECT: the request is served as it stands; what follows it is not HTTP.
                    self._deaf = True
                    self.cycle.keep_alive = False
                    return
                data = data[stopped.args[0] :]
            self._upgrade_offered = False
            self._read_on_without_upgrade()

    def _read_on_without_upgrade(self) -> None:
        """Puts a new parser where the one that saw an upgrade stopped: behind the request's head."""
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        framing = b"".join(b"%b: %b\r\n" % header for header in self.headers if header[0] in _FRAMING)
        version = self.scope["http_version"].encode()
        self._retelling = True
        try:
            self.parser.feed_data(b"POST / HTTP/%b\r\n%b\r\n" % (version, framing))
        finally:
            self._retelling = False

    def on_message_begin(self) -> None:
        if self._retelling:
            return
        super().on_message_begin()
        self._unset_keepalive_if_required()
        self._arrival = Arrival(self)
        self.scope["extensions"] = {ARRIVAL: self._arrival}  # type: ignore[typeddict-item]
        self._in_head = True
        # What of this read came before the head does not count as part of it.
        self._head_bytes = -self._read_bytes
        if self._timer is None:
            self._start_head_timer()

    def on_url(self, url: bytes) -> None:
        if not self._retelling:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._retelling:
            return
        self._stop_timer()
        if sum(len(name) + len(value) for name, value in self.headers) + len(self.url) > MAX_HEAD_BYTES:
            self._fault = f"the request's head is larger than {MAX_HEAD_BYTES} bytes"
            raise ValueError(self._fault)
        if self.parser is not None and self.parser.get_http_version() not in ("1.0", "1.1"):
            self._fault = "the request's HTTP version is not served: use HTTP/1.1"
            raise ValueError(self._fault)
        self._in_head = False
        self._head_is_new = True
        parser = self.parser
        self._upgrade_offered = (
            parser is not None and parser.should_upgrade() and parser.get_method() != b"CONNECT"
        )
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        if self._upgrade_offered:
            return
        self._arrival.complete = True
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._hold()

    def close_sending(self) -> None:
        self._deaf = True
        self.flow.pause_reading()
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()

    def _hold(self) -> None:
        """Leave the rest of a request on the socket until its application asks for it."""
        if self.cycle is not None and not self.cycle.response_complete and not self._arrival.complete:
            self.flow.pause_reading()

    def _refuse(self, reason: Reason, message: str) -> None:
        self._deaf = True
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if self.pipeline:
                assert self._answering is not None
                self.pipeline.clear()
                self.cycle = self._answering
                self.cycle.keep_alive = False
                return
            if self._arrival.complete or self._in_head or cycle.response_started:
                cycle.keep_alive = False
                return
            # The fault is in this request's body: its application learns that there is no more of it.
            cycle.disconnected = True
            cycle.message_event.set()
        body = error_body(message)
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        head = b"".join(b"%b: %b\r\n" % header for header in headers)
        self.transport.write(b"%b%b\r\n%b" % (STATUS_LINE[STATUS[reason].http], head, body))
        self.close_sending()
        self._stop_timer()
        self._timer = self.loop.call_later(LINGER_S, self.transport.close)

    def _start_head_timer(self) -> None:
        self._timer = self.loop.call_later(self.head_timeout_s, self._head_timed_out)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _head_timed_out(self) -> None:
        self._timer = None
        if self._in_head and self.flow.read_paused:
            self._start_head_timer()
        elif self._in_head:
            self._refuse(
                Reason.BODY_TIMEOUT, f"the request's head was not complete after {self.head_timeout_s:g} s"
            )
        elif self.cycle is None:
            self.transport.close()
