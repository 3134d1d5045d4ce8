"""ljtrain: an optimised training stack that plugs into stock PyTorch, DeepSpeed, transformers and
accelerate.

Importing it costs next to nothing: it is imported with every `import torch` (see
`ljtrain.autoload`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ljtrain.status import status

__version__ = "0.1.0"
__all__ = ["__version__", "status"]


def __getattr__(name: str) -> Any:
    if name == "status":
        import importlib

        return importlib.import_module("ljtrain.status")  # a module that can be called
    raise AttributeError(f"module 'ljtrain' has no attribute {name!r}")
