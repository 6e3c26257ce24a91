"""An agent as an ONNX file or a C file, checked against the agent it came from."""

from phasegrad.export.c import export_c
from phasegrad.export.onnx import export_onnx

__all__ = ["export_c", "export_onnx"]
