"""PURE. Which release reaches which device, and when: the gate before a rollout, and the rollout itself."""
