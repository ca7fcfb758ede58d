"""The operator API. It runs in the control deployment; the data plane passes calls on to it."""
