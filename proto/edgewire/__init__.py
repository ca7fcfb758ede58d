"""What a gateway and a device agree on, shared by both and free of I/O.

v1/*.proto   messages and calls of the edge link; stubs beside them, written by `make gen`
places       where something is
allowed      the set of places that a request's data may go to, as it travels with the request
"""
