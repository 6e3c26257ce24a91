"""An agent as an ONNX file, checked against the agent it came from."""

from phasegrad.export.onnx import export_onnx

__all__ = ["export_onnx"]
