"""The serving surface: OIP over gRPC and HTTP, and the portable lane that listens for both.

- `handlers` answers a `Call` with a `Reply` and knows no wire. A lane turns its wire into the one
  and the other back into its wire, so a further lane touches nothing else.
- `codecs` writes what the handlers say in the words of a binding: protobuf on gRPC, JSON on HTTP.
- `grpc_lane` and `http_lane` are the portable lane: grpc.aio with raw bytes, and an ASGI
  application on uvicorn. Both run on the loop that starts them and install nothing process-wide.

The request's body is never read before a handler asks for it, on either wire.
"""
