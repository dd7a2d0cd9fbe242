"""How shards of keys and values travel between the processes of a group, for ring attention."""

import torch
from torch import Tensor, distributed
from torch.distributed import P2POp, ProcessGroup

from regard.attention.ring.transport import Transport, Wait


class GroupTransport(Transport):
    """The ranks of a process group. A reduction comes first (``gather``), as NCCL needs it before it sends."""

    def __init__(self, group: ProcessGroup):
        super().__init__()
        self.group = group
        self.rank, self.size = group.rank(), group.size()

    def gather(self, x: Tensor) -> list[Tensor]:
        found = [torch.empty_like(x) for _ in range(self.size)]
        distributed.all_gather(found, x.contiguous(), group=self.group)
        return found

    def _exchange(self, sent: Tensor | None, to: int, received: Tensor | None, source: int) -> Wait:
        operations = []
        if sent is not None:
            operations.append(P2POp(distributed.isend, sent, group=self.group, group_peer=to))
        if received is not None:
            operations.append(P2POp(distributed.irecv, received, group=self.group, group_peer=source))
        works = distributed.batch_isend_irecv(operations) if operations else []

        def wait() -> None:
            for work in works:
                work.wait()
            operations.clear()  # which keep the tensors until here

        return wait
