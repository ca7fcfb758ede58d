"""What is to be sent to one device, in the order in which it is sent. PURE.

Small messages go first; the bodies of inferences follow in pieces, and bodies take turns: between two
pieces of one there is at most one piece of each other. So a large tensor delays neither a Cancel nor a
small request by more than a piece.
"""

from __future__ import annotations

from collections import deque

from edgewire.v1 import edge_pb2

PIECE_BYTES = 64 * 1024
"""Most of a body that one message carries."""


class Outbox:
    """Filled by a session, emptied by whoever writes to the stream. `held` is the number of bytes of
    bodies that are still to be sent."""

    def __init__(self) -> None:
        self._small: deque[edge_pb2.HubMessage] = deque()
        self._new: dict[int, edge_pb2.Infer] = {}
        self._bodies: dict[int, tuple[bytes, int]] = {}
        self._turns: deque[int] = deque()
        self.held = 0

    def tell(self, message: edge_pb2.HubMessage) -> None:
        self._small.append(message)

    def infer(self, message: edge_pb2.Infer, body: bytes) -> None:
        """`message.size` is the length of `body`."""
        self._new[message.id] = message
        if body:
            self._bodies[message.id] = (body, 0)
            self.held += len(body)

    def drop(self, number: int) -> bool:
        """Send no more of an inference. True when some of it has been taken before."""
        body = self._bodies.pop(number, None)
        if body is not None:
            self.held -= len(body[0]) - body[1]
        return self._new.pop(number, None) is None

    def holds_all_of(self, number: int) -> bool:
        """Whether nothing of an inference has been taken yet."""
        return number in self._new

    def take(self) -> edge_pb2.HubMessage | None:
        """The next message to write; None when there is none."""
        if self._small:
            return self._small.popleft()
        if self._new:
            number = next(iter(self._new))
            message = edge_pb2.HubMessage(infer=self._new.pop(number))
            if number in self._bodies:
                self._turns.append(number)
            return message
        while self._turns:
            number = self._turns.popleft()
            if number in self._bodies:
                return self._piece(number)
        return None

    def _piece(self, number: int) -> edge_pb2.HubMessage:
        body, at = self._bodies[number]
        piece = body[at : at + PIECE_BYTES]
        at += len(piece)
        self.held -= len(piece)
        if at < len(body):
            self._bodies[number] = (body, at)
            self._turns.append(number)
        else:
            del self._bodies[number]
        message = edge_pb2.HubMessage()
        message.data.id = number
        message.data.piece = piece
        return message
