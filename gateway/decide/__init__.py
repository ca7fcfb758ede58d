"""PURE. The one place where it is decided who may answer a request.

`decide` is what the director, the dry run and the tests call; `gateway_refusal` answers from headers
alone, before a body is read, and `decide` asks the same again, as it does `version_refusal`;
`unknown_model` is the refusal of a name that is not there, whoever finds out; `Attempts` hands
dispatch the places of a plan one by one, behind the same privacy wall.

Invariants, all of them property-tested: a place that a class forbids is in no plan and is never
handed out; a caller's class or option can only narrow what is allowed; nothing but `policy.privacy`
says what a class allows.
"""

from gateway.decide.admission import gateway_refusal, unknown_model, version_refusal
from gateway.decide.attempts import Attempts, may_attempt
from gateway.decide.choose import decide
from gateway.decide.tables import Compiled, compiled

__all__ = [
    "Attempts",
    "Compiled",
    "compiled",
    "decide",
    "gateway_refusal",
    "may_attempt",
    "unknown_model",
    "version_refusal",
]
