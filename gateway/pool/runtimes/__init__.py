"""What opens a model file and runs it. One file each, found by its `kind`; `_interface` says what it must do.

Importing a runtime's file imports no library of it: that happens when a model is opened.
"""
