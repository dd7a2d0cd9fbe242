"""The choice of a backend for a call, with the reasons against the others."""

from typing import NamedTuple

import torch

from regard.attention.backends.banded import Banded
from regard.attention.backends.decode_gpu import DecodeGPU
from regard.attention.backends.edges import EdgeBackend
from regard.attention.backends.flex import Flex
from regard.attention.backends.reference import Blocked, Reference
from regard.attention.backends.ring import Ring
from regard.attention.backends.sdpa import Sdpa
from regard.attention.backends.small_cpu import SmallCPU
from regard.attention.call import Backend, Call, Out, Plan, shape_errors
from regard.attention.masks.mask import Mask
from regard.attention.tiling.regroup import alternatives, share

_ALL = (EdgeBackend(), DecodeGPU(), SmallCPU(), Sdpa(), Flex(), Banded(), Blocked(), Reference(), Ring())
BACKENDS: dict[str, Backend] = {backend.name: backend for backend in _ALL}
DENSE_FIRST = tuple(BACKENDS)
LOCAL_FIRST = (
    "edges",
    "decode_gpu",
    "flex",
    "banded",
    "small_cpu",
    "sdpa",
    "blocked",
    "reference",
    "ring",
)  # for masks with few keys
STRIDED_KEYS = 1024  # keys from which regrouping is worth its cost


class BackendRefused(ValueError):
    """A backend chosen by name cannot do the call. ``problem`` lists its reasons, without the fix."""

    def __init__(self, problem: str, fix: str = ". Use backend='auto'."):
        super().__init__(problem + fix)
        self.problem = problem


class Explanation(NamedTuple):
    """The chosen backend, and the reasons against each of the others (an empty list: able, but slower here)."""

    chosen: str
    refusals: dict[str, list[str]]

    def __str__(self) -> str:
        others = {name: reasons for name, reasons in self.refusals.items() if name != self.chosen}
        words = [f"{name}: {'; '.join(why) or 'able, but not the first choice here'}" for name, why in others.items()]
        return "\n".join([f"{self.chosen}: chosen", *words])


def preference(plan: Plan) -> tuple[str, ...]:
    """Backends in order of speed, from the structure of the plan alone."""
    return LOCAL_FIRST if sparse(plan.mask, plan.keys.length) else DENSE_FIRST


def sparse(mask: Mask, keys: int) -> bool:
    """Whether a query sees few of the keys: near ones, the first ones, or every n-th of a long text.

    A mask without such bounds is recognized before ``keys`` is read, which would become a guard in an exported graph.
    """
    (first, back), ahead = mask.retention(), mask.reach().ahead
    if back is not None and ahead is not None and 4 * (first + back + ahead + 1) <= keys:
        return True
    strided = any(one.stride_pattern().step > 1 for one in alternatives(mask))
    return strided and keys >= STRIDED_KEYS and 8 * share(mask, keys) <= 1


def with_backend(plan: Plan, backend: Backend, device: torch.device) -> Plan:
    """The same plan prepared for ``backend``."""
    return plan._replace(backend=backend.name, prepared=backend.prepare(plan, device))


def find(call: Call, backend: str | Backend = "auto") -> Backend:
    """The backend for this call. One chosen by name never falls back silently."""
    if backend == "auto":
        for name in preference(call.plan):
            if not BACKENDS[name].refuses(call):
                return BACKENDS[name]
        return BACKENDS["reference"]
    if isinstance(backend, str):
        if backend not in BACKENDS:
            raise BackendRefused(f"there is no backend {backend!r}", f"; choose from auto, {', '.join(BACKENDS)}")
        backend = BACKENDS[backend]
    reasons = backend.refuses(call)
    if reasons:
        raise BackendRefused(f"backend {backend.name!r} cannot do this call: {'; '.join(reasons)}")
    return backend


def run(call: Call, backend: str | Backend = "auto") -> Out:
    """Run a call on the backend of its plan, or on another one if that one refuses it."""
    errors = shape_errors(call)
    if errors:
        raise ValueError("; ".join(errors))
    planned = BACKENDS.get(call.plan.backend)
    if backend == "auto" and planned is not None and not planned.refuses(call):
        return planned.run(call)
    chosen = find(call, backend)
    if chosen.name != call.plan.backend:
        call = call._replace(plan=with_backend(call.plan, chosen, call.q.device))
    return chosen.run(call)


def explain(call: Call, backend: str | Backend = "auto") -> Explanation:
    """Which backend would run ``call``, and why the others would not. ``print`` it."""
    refusals = {name: BACKENDS[name].refuses(call) for name in preference(call.plan)}
    return Explanation(find(call, backend).name, refusals)
