"""Prints version, folder and C++ ABI of the PyTorch that this Python imports, as a CMake list."""

from pathlib import Path

import torch

print(f"{torch.__version__};{Path(torch.__file__).parent};{int(torch.compiled_with_cxx11_abi())}")
