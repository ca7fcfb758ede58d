"""Accelerator pools: models that this gateway runs itself, on Ray.

    config       what the file says of a pool; imports no runtime and no Ray
    settings     what that comes to for replicas, as plain data
    runtimes     what opens a model file and runs it, one file each, found by `kind`
    lane         one opened model: its queue, its batches, its thread
    replica      the Serve deployment: every model of a pool, behind one call
    inspection   what a file takes and gives, before any replica runs
    deploy       a pool as an application on Ray Serve
    status       how it is doing there, without waking it
    loopback     where a replica listens

`gateway.backends.pool` calls the replicas and keeps watch over the pool.
"""
