"""PURE. How a model is updated.

loop    one update, from what set it off to the model that is confirmed
"""
