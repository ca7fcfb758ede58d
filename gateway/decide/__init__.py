"""PURE. The one place where it is decided who may answer a request.

`decide` is what the director, the dry run and the tests call; `gateway_refusal` answers from headers
alone, before a body is read, and `decide` asks the same again, as it does `version_refusal`;
`unknown_model` is the refusal of a name that is not there, whoever finds out; `reach` says whether an
endpoint, or some device of a group, is behind the privacy wall or can be asked; `Attempts` hands
dispatch the places of a plan and the devices of a group one by one, with leave from the same wall.

Invariants, all of them property-tested: a place that a class forbids is in no plan and is never
handed out, nor named in what travels with the data; a caller's class or option and a peer's set can
only narrow what is allowed; no request goes back to a gateway that it passed; nothing but
`policy.privacy` says what a class allows.
"""

from gateway.decide.admission import gateway_refusal, unknown_model, version_refusal
from gateway.decide.attempts import Attempts, may_attempt
from gateway.decide.choose import decide
from gateway.decide.groups import Reach, reach
from gateway.decide.tables import Compiled, Wall, compiled

__all__ = [
    "Attempts",
    "Compiled",
    "Reach",
    "Wall",
    "compiled",
    "decide",
    "gateway_refusal",
    "may_attempt",
    "reach",
    "unknown_model",
    "version_refusal",
]
