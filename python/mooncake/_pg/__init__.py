"""The compiled part of mooncake.pg: checks that it fits the installed torch, then loads it. Nothing else."""

import torch
import torch.distributed

try:
    from ._build import TORCH_VERSION
except ImportError as error:
    raise ImportError(
        "mooncake.pg is not built: build the project and put <build>/python on PYTHONPATH, not the source folder"
    ) from error


def _public(version: str) -> str:
    return version.split("+", 1)[0]


if _public(torch.__version__) != _public(TORCH_VERSION):
    raise ImportError(
        f"mooncake.pg was built for torch {TORCH_VERSION}, found torch {torch.__version__}: "
        "build it again with this interpreter (cmake -DPython3_EXECUTABLE=...), or install the torch it was built for"
    )

from . import _C  # noqa: E402
