"""The long runs: many callers who leave, places that die, and what of it stays behind. `python -m tests.soak`.

- `crosstalk`: callers with payloads of their own, a third of whom leave at a random moment; no answer may belong
  to another request. Triton itself may die over a cancel: it is started again, and the gateway has to live.
- `flat`: the same callers for a number of requests, while memory, descriptors and threads of every process of the
  gateway are sampled; what is held at the end of the run must be what was held when it had warmed up.
"""
