"""Models for tests, in MLServer's environment: they give their inputs back."""

from __future__ import annotations

from mlserver import MLModel
from mlserver.types import InferenceRequest, InferenceResponse, Parameters, ResponseOutput


class Identity(MLModel):
    """OUTPUT0 is INPUT0; `boom` raises. The request's parameters come back as text."""

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        (given,) = payload.inputs
        if self.name == "boom":
            raise ValueError(f"cannot take {given.data}")
        told = {} if payload.parameters is None else payload.parameters.model_dump(exclude_none=True)
        seen = {key: repr(value) for key, value in told.items() if key not in ("headers", "content_type")}
        return InferenceResponse(
            id=payload.id,
            model_name=self.name,
            model_version=self.version,
            parameters=Parameters(**seen),
            outputs=[
                ResponseOutput(name="OUTPUT0", datatype=given.datatype, shape=given.shape, data=given.data)
            ],
        )
