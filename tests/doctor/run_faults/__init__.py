"""Faults of training runs that really happen, each as a training of seconds on one core.

One file per group; a file added here is found by itself. Of 65 faults, 25 were listed before any check was written
(``listed``); the others came later in groups of ten, written without a look at the checks, to measure them.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from run_faults.kit import Fault

SHARED = ("kit", "sabotage")
MODULES = [import_module(f"{__name__}.{one.name}") for one in iter_modules(__path__) if one.name not in SHARED]
FAULTS: list[Fault] = [fault for module in MODULES for fault in module.FAULTS]
