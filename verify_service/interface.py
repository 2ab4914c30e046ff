"""The engine by the name that its process asks for."""

from verify_service.engine_core import EngineCore as VerifyEnginePort

__all__ = ["VerifyEnginePort"]
