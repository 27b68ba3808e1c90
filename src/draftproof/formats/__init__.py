"""Model files: bytes on disk to named tensors and metadata. Hostile input is handled here."""

from __future__ import annotations

from draftproof.formats.dequantize import GGML_TYPES, GgmlType, dequantize, ggml_type_name
from draftproof.formats.gguf import GgufFile, TensorInfo

__all__ = ["GGML_TYPES", "GgmlType", "GgufFile", "TensorInfo", "dequantize", "ggml_type_name"]
