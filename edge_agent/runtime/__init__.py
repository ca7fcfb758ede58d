"""One worker process for each active model, holding one interpreter, and what the agent asks of it.

    settings    how a device runs models
    frames      messages between agent and worker: a JSON header, then tensors as they are; no I/O
    engine      an interpreter by the first delegate that works, bound by names
    worker      the process: checks, loads, answers, one request after the other
    process     the agent's end of one worker
    launch      from an artifact on disk to a worker that has it loaded and tried
    served      a model that answers: validation, batching, worker after worker

Nothing that came from outside the device is parsed in the agent's own process but requests, and those
by proto/oip: a file or a library that crashes its process takes a worker with it and nothing else.

An interpreter serves one request at a time, outputs are copied out before the next, and no caller's
state reaches another: variable tensors are reset before each request, and a model that keeps state in
resources, which TFLite cannot reset, gets a new interpreter.
"""

from edge_agent.runtime.process import WorkerEnded
from edge_agent.runtime.served import ServedModel
from edge_agent.runtime.settings import RuntimeSettings

__all__ = ["RuntimeSettings", "ServedModel", "WorkerEnded"]
