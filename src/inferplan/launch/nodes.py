"""How the devices of a deployment lie in nodes. Knows no engine and no link speed."""

from __future__ import annotations

from dataclasses import dataclass

from inferplan.deployment import Estimate
from inferplan.errors import SpecError

MOST_IN_A_NODE = 16  # a link that joins more spans nodes, such as that of a rack
USUAL = 8  # devices of a server that are taken to be in one node, where no link joins them


@dataclass(frozen=True, slots=True)
class Nodes:
    """Nodes of a deployment and devices taken in each of them; `remark` says what was assumed, '' for nothing."""

    count: int
    devices: int
    remark: str = ""


def nodes(e: Estimate, devices_per_node: int | None = None) -> Nodes:
    """The nodes that a deployment takes: of so many devices, unsaid of as many as the part's link joins.

    Raises SpecError where the number must be given, or where nodes would come out uneven.

    >>> from inferplan.deployment import estimate
    >>> from inferplan.names import hardware, model, precision
    >>> from inferplan.specs.parallel import Parallel
    >>> found = estimate(model("llama-3.1-405b"), hardware("h100"), precision("fp8"), parallel=Parallel(tp=8, pp=2))
    >>> nodes(found).count, nodes(found).devices
    (2, 8)
    """
    if devices_per_node is not None and not 1 <= devices_per_node <= 1024:
        raise SpecError("must lie between 1 and 1,024", field="gpus_per_node", value=devices_per_node)
    held, remark = (devices_per_node, "") if devices_per_node is not None else _held(e)
    if e.gpus <= held:
        return Nodes(1, e.gpus, remark)
    if e.gpus % held:
        raise SpecError(f"does not divide the {e.gpus} devices of the deployment", field="gpus_per_node", value=held)
    return Nodes(e.gpus // held, held, remark)


def _held(e: Estimate) -> tuple[int, str]:
    """Devices of one node where the user does not say, and what was assumed."""
    domain = e.hardware.domain
    if e.gpus == 1:
        return 1, ""
    if 2 <= domain <= MOST_IN_A_NODE:
        return domain, "" if e.gpus <= domain else f"nodes: {domain} devices in each, as many as the part's link joins (--gpus-per-node)"
    if domain < 2 and e.gpus <= USUAL:
        return e.gpus, f"nodes: all {e.gpus} devices are taken to be in one (--gpus-per-node says otherwise)"
    joined = f"the link of {e.hardware.title} joins {domain} devices, which are several nodes" if domain > 1 else "no link joins them"
    raise SpecError(f"must be given: {joined}", field="gpus_per_node")
