"""A TCP relay on loopback between two gateways that keeps what passes, and can be cut.

It stands for the line between a site and the rest of the world: what it holds is what has left.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

CHUNK = 65536
PIECE = 16
"""Payloads are looked for in pieces of so many bytes: a message may be split between frames."""


class Wiretap:
    """Listens at once; relays to `target` (HOST:PORT) once that is set, and refuses while it is cut."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._streams: list[bytearray] = []
        self._cut = False
        self.target = ""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def bytes_seen(self) -> int:
        """Of everything, health checks included, in both directions."""
        with self._lock:
            return sum(map(len, self._streams))

    def payload_seen(self, payload: bytes) -> int:
        """How many bytes of `payload`, in whole pieces, have passed in either direction."""
        pieces = [payload[at : at + PIECE] for at in range(0, len(payload) - PIECE + 1, PIECE)]
        with self._lock:
            streams = [bytes(stream) for stream in self._streams]
        return PIECE * sum(any(piece in stream for stream in streams) for piece in pieces)

    def cut(self) -> None:
        """End every connection and take no new one."""
        with self._lock:
            self._cut = True
            for one in self._open:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        with self._lock:
            self._cut = False

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = self._dial()
                if far is None:
                    near.close()
                    continue
                with self._lock:
                    streams = (bytearray(), bytearray())
                    self._streams += streams
                    self._open |= {near, far}
                for source, sink, kept in ((near, far, streams[0]), (far, near, streams[1])):
                    threading.Thread(target=self._pump, args=(source, sink, kept), daemon=True).start()

    def _dial(self) -> socket.socket | None:
        host, _, port = self.target.rpartition(":")
        if self._cut or not host:
            return None
        try:
            return socket.create_connection((host, int(port)), timeout=5)
        except OSError:
            return None

    def _pump(self, source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                with self._lock:
                    kept += data
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open -= {source}
        source.close()
