"""The kinds of places that can run models: one file per kind, found by its `kind`.

Every kind implements `gateway.core.ports.Endpoint` and passes the suite in
`tests/contract/endpoint_suite.py`. A module is imported to read its parameters, so what an endpoint
needs to talk is imported when one is made.
"""
