"""The name under which pickle looks for the classes of tritonclient's stubs.

They were compiled from `grpc_service.proto` and say so in `__module__`; Ray Serve's proxy pickles
requests on their way to a replica, so this folder is on its PYTHONPATH.
"""

from tritonclient.grpc.service_pb2 import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]
