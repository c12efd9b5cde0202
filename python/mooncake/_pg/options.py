"""MooncakeBackendOptions, and the checks of arguments that mooncake.pg shares with it. Decides nothing about groups."""

from __future__ import annotations

import os
from typing import Any, Optional

import torch

from . import _C

MooncakeError = _C.MooncakeError
MAX_RANKS = 1024

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


def error(code: str, text: str) -> MooncakeError:
    made = MooncakeError(text)
    made.code = code
    made.status = _C.status_value(code)
    return made


def whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__} {value!r}")
    return value


def truth(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {type(value).__name__} {value!r}")
    return value


# ---- Options ----

_POSITIONAL = {
    "tensor": ("active_ranks", "is_extension", "max_group_size"),
    "size": ("max_group_size", "is_extension", "auto_deactivate_on_failure", "auto_sync_on_failure"),
}


class MooncakeBackendOptions:
    """Options of one group, immutable.

    MooncakeBackendOptions(active_ranks, is_extension=False, max_group_size=-1)
    MooncakeBackendOptions(max_group_size, is_extension=False, auto_deactivate_on_failure=True,
                           auto_sync_on_failure=True)

    Every name may also be given as a keyword, and group_key only so. active_ranks is an int32 tensor that will hold the
    group's active mask (one 0 or 1 per rank); its content is overwritten.
    """

    __slots__ = (
        "active_ranks",
        "is_extension",
        "max_group_size",
        "auto_deactivate_on_failure",
        "auto_sync_on_failure",
        "group_key",
    )

    active_ranks: Optional[torch.Tensor]
    is_extension: bool
    max_group_size: int
    auto_deactivate_on_failure: bool
    auto_sync_on_failure: bool
    group_key: Optional[str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        values: dict[str, Any] = {
            "active_ranks": None,
            "is_extension": False,
            "max_group_size": -1,
            "auto_deactivate_on_failure": True,
            "auto_sync_on_failure": True,
            "group_key": None,
        }
        names = _POSITIONAL["tensor" if args and isinstance(args[0], torch.Tensor) else "size"]
        if len(args) > len(names):
            raise TypeError(
                f"MooncakeBackendOptions takes at most {len(names)} positional arguments ({', '.join(names)}), "
                f"got {len(args)}"
            )
        given = dict(zip(names, args))
        for name, value in kwargs.items():
            if name not in values:
                raise TypeError(f"unknown option {name!r} of MooncakeBackendOptions: use one of {', '.join(values)}")
            if name in given:
                raise TypeError(f"option {name!r} was given twice")
            given[name] = value
        values.update(given)
        self._check(values)
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @staticmethod
    def _check(values: dict[str, Any]) -> None:
        for name in ("is_extension", "auto_deactivate_on_failure", "auto_sync_on_failure"):
            truth(name, values[name])
        size = whole("max_group_size", values["max_group_size"])
        if size != -1 and not 1 <= size <= MAX_RANKS:
            raise ValueError(f"max_group_size {size} is out of range: use 1 to {MAX_RANKS}, or -1 for the group's size")
        if values["auto_sync_on_failure"] and not values["auto_deactivate_on_failure"]:
            raise ValueError(
                "auto_sync_on_failure=True needs auto_deactivate_on_failure=True: "
                "a manual group is MooncakeBackendOptions(max_group_size, is_extension, False, False)"
            )
        key = values["group_key"]
        if key is not None and (not isinstance(key, str) or not key):
            raise TypeError(f"group_key must be a non-empty string or None, got {key!r}")
        mask = values["active_ranks"]
        if mask is None:
            return
        if not isinstance(mask, torch.Tensor):
            raise TypeError(f"active_ranks must be a tensor, got {type(mask).__name__}")
        if mask.dtype != torch.int32 or not mask.is_contiguous():
            raise ValueError(
                f"active_ranks must be a contiguous int32 tensor, got dtype {mask.dtype}: "
                "use torch.zeros(n, dtype=torch.int32)"
            )
        if mask.numel() < max(size, 1):
            raise ValueError(
                f"active_ranks has {mask.numel()} elements, but max_group_size is {size}: it needs one per rank"
            )

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"MooncakeBackendOptions is immutable: make a new one with {name}={value!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("MooncakeBackendOptions is immutable")

    def __repr__(self) -> str:
        mask = None if self.active_ranks is None else f"<int32 tensor of {self.active_ranks.numel()}>"
        rest = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__[1:])
        return f"MooncakeBackendOptions(active_ranks={mask}, {rest})"


def _flag_from_environment(name: str) -> bool:
    text = os.environ.get(name)
    if text is None or not text.strip():
        return True
    word = text.strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise error("INVALID_ARGUMENT", f"environment variable {name}={text!r} is not understood: use 1 or 0")


def default_options() -> MooncakeBackendOptions:
    deactivate = _flag_from_environment("MOONCAKE_PG_AUTO_DEACTIVATE_ON_FAILURE")
    sync = _flag_from_environment("MOONCAKE_PG_AUTO_SYNC_ON_FAILURE")
    if not deactivate and "MOONCAKE_PG_AUTO_SYNC_ON_FAILURE" not in os.environ:
        sync = False
    return MooncakeBackendOptions(auto_deactivate_on_failure=deactivate, auto_sync_on_failure=sync)


MooncakeBackendOptions.__module__ = "mooncake.pg"
