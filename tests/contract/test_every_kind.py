"""No endpoint kind without the contract suite."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import tests.contract
from gateway.core.config import EndpointConfig
from gateway.core.plugins import discover
from tests.contract.endpoint_suite import AnswerSuite, EndpointSuite


def test_every_discovered_kind_has_a_suite():
    tested = set()
    for info in pkgutil.iter_modules(tests.contract.__path__):
        module = importlib.import_module(f"tests.contract.{info.name}")
        for _, cls in inspect.getmembers(module, inspect.isclass):
            if issubclass(cls, AnswerSuite) and cls not in (AnswerSuite, EndpointSuite):
                assert cls.__name__.startswith("Test"), f"pytest does not collect {cls.__name__}"
                tested.add(cls.kind)
    kinds = discover("gateway.backends")
    assert "triton" in kinds
    assert tested == set(kinds)


def test_every_kind_declares_its_own_parameters():
    for kind, cls in discover("gateway.backends").items():
        assert issubclass(cls.params, EndpointConfig)
        assert cls.params.model_fields["kind"].annotation.__args__ == (kind,)
