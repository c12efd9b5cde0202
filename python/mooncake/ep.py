"""mooncake.ep: the older module name for the functions of mooncake.pg."""

from .pg import *  # noqa: F401,F403
