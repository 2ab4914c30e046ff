"""Generated bases refuse every method; the services that stand on them leave none of those refusals
in place."""

import importlib
import inspect

import pytest

SERVICES = {
    "control": ("Control", "coordinator.cells.control"),
    "generate": ("Generation", "coordinator.reception.service"),
    "frontend": ("Cell", "coordinator.cells.frontends"),
    "verify": ("Verify", "verify_service.service"),
    "draft": ("Draft", "draft_service.service"),
    "features": ("Features", "draft_service.feature_receiver"),
}


@pytest.mark.parametrize("proto", SERVICES)
def test_every_method_is_served(proto: str) -> None:
    name, room = SERVICES[proto]
    base = getattr(importlib.import_module(f"dspark.wire.v1.{proto}_pb2_grpc"), f"{name}Servicer")
    methods = [method for method, _ in inspect.getmembers(base, inspect.isfunction)]
    assert methods
    module = importlib.import_module(room)
    served = [
        kind for kind in vars(module).values() if inspect.isclass(kind) and issubclass(kind, base)
    ]
    served = [kind for kind in served if kind.__module__ == room]
    assert served, f"{room} serves no {name}"
    for kind in served:
        assert not [method for method in methods if getattr(kind, method) is getattr(base, method)]
