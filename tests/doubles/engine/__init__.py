"""An HTTP engine that behaves like vLLM 0.32 on the wire and needs no model. See README.md."""

from tests.doubles.engine.faults import Fault
from tests.doubles.engine.server import EngineDouble
from tests.doubles.engine.settings import Settings

__all__ = ["EngineDouble", "Fault", "Settings"]
