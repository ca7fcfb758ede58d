"""The performance table: `python -m tests.bench`, which is `make bench`.

Every path between a client and a backend is started, loaded and stopped in turn, on this machine and
in one run, so that the ratios between rows mean something; absolute times belong to the machine.

- `workload`: the requests, their answers and how an answer is checked;
- `backends`: what answers, a real Triton or `fixed`, a process with answers made beforehand;
- `load`: a process that keeps N requests in flight for a bounded time and prints what it saw;
- `paths`: how each path is started and which of its processes carry requests;
- `serve_proxy`: the peer, Ray Serve's own gRPC proxy before a deployment that forwards;
- `run`: the matrix, the table, `build/bench.json`.
"""
