"""What goes up the stream next: control messages first, then data, a piece of each answer in turn.

So a heartbeat waits for one piece of data at most, and a small answer is not held up by a large one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from edgewire.v1 import edge_pb2

PIECE_BYTES = 64 * 1024


class Outbox:
    """Messages to send, taken one at a time by `next`."""

    def __init__(self) -> None:
        self._control: deque[edge_pb2.DeviceMessage] = deque()
        self._transfers: deque[_Transfer] = deque()

    def __bool__(self) -> bool:
        """Whether there is something to send."""
        return bool(self._control or self._transfers)

    @property
    def waiting(self) -> int:
        """Control messages that wait to be sent."""
        return len(self._control)

    def put(self, message: edge_pb2.DeviceMessage) -> None:
        """A control message, behind those that wait already."""
        self._control.append(message)

    def heartbeat(self, heartbeat: edge_pb2.Heartbeat) -> None:
        """Only the last heartbeat counts, so one that waits still is replaced."""
        for message in self._control:
            if message.WhichOneof("kind") == "heartbeat":
                message.heartbeat.CopyFrom(heartbeat)
                return
        self._control.append(edge_pb2.DeviceMessage(heartbeat=heartbeat))

    def answer(
        self, answer: edge_pb2.Answer, response: bytes = b"", sent: Callable[[], None] | None = None
    ) -> None:
        """An answer and its `response`; `sent` is called when the last of it has been taken."""
        self._control.append(edge_pb2.DeviceMessage(answer=answer))
        if response:
            self._transfers.append(_Transfer(answer.id, memoryview(response), sent))
        elif sent is not None:
            sent()

    def drop(self, id: int) -> None:
        """Nothing more of this answer."""
        self._control = deque(
            message
            for message in self._control
            if not (message.WhichOneof("kind") == "answer" and message.answer.id == id)
        )
        self._transfers = deque(transfer for transfer in self._transfers if transfer.id != id)

    def next(self) -> edge_pb2.DeviceMessage | None:
        """Take the next message; None when there is none."""
        if self._control:
            return self._control.popleft()
        if not self._transfers:
            return None
        transfer = self._transfers.popleft()
        piece = transfer.take()
        if transfer.left:
            self._transfers.append(transfer)
        elif transfer.sent is not None:
            transfer.sent()
        return edge_pb2.DeviceMessage(data=edge_pb2.Data(id=transfer.id, piece=piece))


class _Transfer:
    def __init__(self, id: int, content: memoryview, sent: Callable[[], None] | None) -> None:
        self.id = id
        self.sent = sent
        self._content = content
        self._at = 0

    @property
    def left(self) -> bool:
        return self._at < len(self._content)

    def take(self) -> bytes:
        piece = bytes(self._content[self._at : self._at + PIECE_BYTES])
        self._at += len(piece)
        return piece
