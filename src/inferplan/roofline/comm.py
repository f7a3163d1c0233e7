"""Collectives to seconds: a start-up and bytes over a link (alpha-beta), by algorithm, link and node. Knows no model and no operator.

A message is what each rank holds before the collective: the vector that an all-reduce or a reduce-scatter adds up, the block that
an all-gather spreads, all that a rank has to say in an all-to-all. Bandwidths are one way and per device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from inferplan.errors import Unsupported, shown
from inferplan.formula import formula
from inferplan.ops import Numeric
from inferplan.roofline.efficiency import Efficiency, LinkRate
from inferplan.specs.hardware import Accelerator
from inferplan.specs.link import Links
from inferplan.specs.link import links as link_table

TierKind = Literal["switch", "mesh", "torus", "link", "host", "network"]
HOST_DOMAIN = 8  # devices taken to sit in the slots of one host, as in common servers
NETWORK = "ib-ndr"
SWITCHED = 8  # devices from which NVLink goes through a switch; two to four are joined by bridges


@dataclass(frozen=True, slots=True)
class Tier:
    """One level of the way between devices.

    bandwidth
        B/s one way per device; `pair` between two devices, where the links of a device do not pool.
    latency_s
        a known start-up that replaces the calibrated one of a library; None where there is none.
    domain
        the most devices it joins; None without a limit.
    reduces
        whether the switch adds up on the way.
    """

    name: str
    kind: TierKind
    bandwidth: float
    domain: int | None = None
    latency_s: float | None = None
    pair: float | None = None
    reduces: bool = False
    assumed: bool = False

    def reach(self, ranks: Numeric) -> Numeric:
        """The bandwidth that a device has towards `ranks` - 1 others: in a mesh, that of the links that lead to them."""
        if self.pair is None:
            return self.bandwidth
        return np.minimum(self.bandwidth, self.pair * np.maximum(np.asarray(ranks) - 1.0, 1.0))


def tiers(hardware: Accelerator, links: Links | None = None, network: Tier | str | None = None) -> tuple[Tier, Tier]:
    """The way between devices of a node and the way between nodes.

    Inside a node it is the part's own link, else its PCIe slot, taken to join 8 devices; between nodes the network that is given
    (a tier, or a name of `links.yaml`), else InfiniBand NDR, one port per device, marked as assumed. A bridge joins fewer devices than a
    node holds: those beyond it are reached over their slots, unless a network is given.
    A part with neither link nor slot has the network alone, if one is given.

    >>> near, far = tiers(Accelerator.find("h100"))
    >>> near.kind, near.bandwidth, near.domain, far.name, far.assumed
    ('switch', 450000000000.0, 8, 'ib-ndr', True)
    """
    table = links or link_table()
    far = _network(table, network)
    slot = _host(hardware, table)
    near = _scale_up(hardware, table) or slot
    if near is not None and slot is not None and network is None and (near.domain or HOST_DOMAIN) < HOST_DOMAIN:
        far = slot
    if near is None:
        if network is None:
            raise Unsupported(f"{hardware.title}: no link between devices is known; name a network")
        near = replace(far, domain=1)
    return near, far


def _scale_up(hardware: Accelerator, table: Links) -> Tier | None:
    link = hardware.link
    if link is None:
        return None
    listed = table.links.get(link.name)
    bandwidth = link.bandwidth or (listed.bandwidth if listed else None)
    if bandwidth is None or (link.domain or 1) < 2:
        return None
    kind: TierKind = "mesh" if link.pair else "torus" if link.name.startswith("ici") else "link"
    if link.name.startswith("nvlink") and hardware.domain >= SWITCHED:
        kind = "switch"
    reduces = kind == "switch" and bool(listed and listed.practical_nvls)
    return Tier(link.name, kind, bandwidth.value, hardware.domain, pair=link.pair.value if link.pair else None, reduces=reduces)


def _host(hardware: Accelerator, table: Links) -> Tier | None:
    slot = hardware.pcie
    if slot is None or f"pcie-{slot.gen}" not in table.links:
        return None
    return Tier(f"pcie-{slot.gen}", "host", table.pcie_bytes_per_s(slot.gen, slot.lanes), HOST_DOMAIN)


def host_link(hardware: Accelerator, host: Accelerator | None = None, *, devices: int = 1) -> tuple[str, float]:
    """The link between a device and its host, and its bandwidth one way in B/s, at most its share of the host's memory.

    `devices` of them, at most eight of a host, read at once. Raises Unsupported for parts that share their memory with the host, or
    whose host link is not known.

    >>> host_link(Accelerator.find("h100"))
    ('pcie-5', 63000000000.0)
    """
    table = link_table()
    if hardware.unified:
        raise Unsupported(f"{hardware.title} shares its memory with the host, so nothing can be offloaded")
    if hardware.host_link is not None:
        name, bandwidth = hardware.host_link.name, hardware.host_link.bandwidth
        found = bandwidth.value if bandwidth else table.find(name).bandwidth.value
    elif (near := _host(hardware, table)) is not None:
        name, found = near.name, near.bandwidth
    else:
        raise Unsupported(f"{hardware.title}: no link to host memory is known, so nothing can be offloaded")
    if host is None:
        return name, found
    if hardware.host_link is None and hardware.pcie is not None and host.pcie is not None:
        found = min(found, table.pcie_bytes_per_s(min(hardware.pcie.gen, host.pcie.gen), hardware.pcie.lanes))
    return name, min(found, host.bandwidth_bytes_per_s / min(devices, HOST_DOMAIN))


def _network(table: Links, network: Tier | str | None) -> Tier:
    if isinstance(network, Tier):
        return network
    listed = table.find(network or NETWORK)
    if network and listed.scope != "scale-out":
        raise Unsupported(f"'{shown(network)}' does not join nodes; ib-ndr, roce-400 or efa-3 do")
    return Tier(network or NETWORK, "network", listed.bandwidth.value, assumed=network is None)


@formula(
    "where(ranks > 1, base_s + 2 * (ranks - 1) * hop_s + 2 * (ranks - 1) / ranks * message_bytes / bandwidth, 0.0)",
    unit="s",
    ref="Patarasuk, Yuan 2009: bandwidth-optimal ring all-reduce",
)
def ring_all_reduce_s(message_bytes: Numeric, ranks: Numeric, bandwidth: Numeric, base_s: Numeric = 0.0, hop_s: Numeric = 0.0) -> Numeric:
    """Seconds of a ring all-reduce: each rank sends 2 (n - 1) / n of the message, in 2 (n - 1) rounds.

    >>> round(float(ring_all_reduce_s(16 * 2**20, 8, 450e9)) * 1e6, 1), float(ring_all_reduce_s(1e6, 1, 450e9))
    (65.2, 0.0)
    """
    n = np.asarray(ranks, float)
    return np.where(n > 1, base_s + 2 * (n - 1) * hop_s + 2 * (n - 1) / n * message_bytes / bandwidth, 0.0)


@formula(
    "where(ranks > 1, start_s + (ranks - 1) * message_bytes / bandwidth, 0.0)",
    unit="s",
    ref="each rank reads the whole message of every other",
)
def one_shot_all_reduce_s(message_bytes: Numeric, ranks: Numeric, bandwidth: Numeric, start_s: Numeric = 0.0) -> Numeric:
    """Seconds of a one-shot all-reduce: one round, n - 1 messages, for short ones.

    >>> round(float(one_shot_all_reduce_s(64 * 2**10, 8, 450e9, 3e-6)) * 1e6, 2)
    4.02
    """
    n = np.asarray(ranks, float)
    return np.where(n > 1, start_s + (n - 1) * message_bytes / bandwidth, 0.0)


@formula(
    "where(ranks > 1, 2 * start_s + 2 * (ranks - 1) / ranks * message_bytes / bandwidth, 0.0)",
    unit="s",
    ref="a direct reduce-scatter, then a direct all-gather",
)
def two_shot_all_reduce_s(message_bytes: Numeric, ranks: Numeric, bandwidth: Numeric, start_s: Numeric = 0.0) -> Numeric:
    """Seconds of a two-shot all-reduce: two rounds with the bytes of a ring.

    >>> round(float(two_shot_all_reduce_s(2 * 2**20, 8, 450e9, 3e-6)) * 1e6, 1)
    14.2
    """
    n = np.asarray(ranks, float)
    return np.where(n > 1, 2 * start_s + 2 * (n - 1) / n * message_bytes / bandwidth, 0.0)


@formula(
    "where(ranks > 1, start_s + (1 + 1 / ranks) * message_bytes / bandwidth, 0.0)",
    unit="s",
    ref="reduction in the switch (NVLS): each rank's message leaves it once, its share of the sum is sent to all",
)
def switch_all_reduce_s(message_bytes: Numeric, ranks: Numeric, bandwidth: Numeric, start_s: Numeric = 0.0) -> Numeric:
    """Seconds of an all-reduce that the switch adds up: (1 + 1 / n) of the message one way.

    >>> round(float(switch_all_reduce_s(2**30, 8, 450e9)) * 1e3, 2)
    2.68
    """
    n = np.asarray(ranks, float)
    return np.where(n > 1, start_s + (1 + 1 / n) * message_bytes / bandwidth, 0.0)


@formula(
    "where(ranks > 1, base_s + (ranks - 1) * hop_s + (ranks - 1) * block_bytes / bandwidth, 0.0)",
    unit="s",
    ref="n - 1 blocks pass each rank, by ring or directly",
)
def spread_s(block_bytes: Numeric, ranks: Numeric, bandwidth: Numeric, base_s: Numeric = 0.0, hop_s: Numeric = 0.0) -> Numeric:
    """Seconds to pass n - 1 blocks: an all-gather of blocks; a reduce-scatter or an all-to-all of messages of n blocks.

    >>> round(float(spread_s(2**21, 8, 450e9)) * 1e6, 2)
    32.62
    """
    n = np.asarray(ranks, float)
    return np.where(n > 1, base_s + (n - 1) * hop_s + (n - 1) * block_bytes / bandwidth, 0.0)


LOW_LATENCY_SHARE = 0.5  # in the quick protocol a 4-byte flag rides with every 4 bytes of data


def within_s(kind: str, message_bytes: Numeric, ranks: Numeric, tier: Tier, rate: LinkRate) -> Numeric:
    """Seconds of a collective over one tier; 0 for one rank. Arrays broadcast."""
    n, message = np.asarray(ranks, float), np.asarray(message_bytes, float)
    base = rate.base if tier.latency_s is None else tier.latency_s
    if kind == "send":
        return np.where(n > 1, (n - 1) * base + message / ((tier.pair or tier.bandwidth) * rate.eff), 0.0)
    if kind == "all_to_all":
        return spread_s(message / n, n, tier.reach(n) * rate.eff, base, 0.0)
    if kind == "all_reduce":
        return _all_reduce_s(message, n, tier, rate, base)
    if kind not in ("all_gather", "reduce_scatter"):
        raise Unsupported(f"'{shown(kind)}' is not a collective; all_reduce, all_gather, reduce_scatter, all_to_all and send are")
    block = message if kind == "all_gather" else message / n
    return _rounds_s(spread_s, block, n, tier.reach(n) * rate.eff, base, rate)


def _rounds_s(by: Callable[..., Numeric], message: Numeric, n: Numeric, bandwidth: Numeric, base: float, rate: LinkRate) -> Numeric:
    """A collective of many rounds in the cheaper of two protocols: quick rounds at half the bandwidth, or slower ones in bulk."""
    if rate.hop_bulk is None:
        return by(message, n, bandwidth, base, rate.hop)
    quick = by(message, n, bandwidth * LOW_LATENCY_SHARE, base, rate.hop)
    return np.minimum(quick, by(message, n, bandwidth, base, rate.hop_bulk))


def _all_reduce_s(message: Numeric, n: NDArray[np.float64], tier: Tier, rate: LinkRate, base: float) -> Numeric:
    """The cheapest of the algorithms that the tier allows."""
    bandwidth = tier.reach(n) * rate.eff
    found = _rounds_s(ring_all_reduce_s, message, n, bandwidth, base, rate)
    if rate.one_shot is not None:
        once = one_shot_all_reduce_s(message, n, bandwidth, rate.one_shot)
        twice = two_shot_all_reduce_s(message, n, bandwidth, rate.one_shot)
        found = np.where(n <= (rate.ranks or np.inf), np.minimum(found, np.minimum(once, twice)), found)
    if tier.reduces and rate.eff_switch is not None:
        found = np.minimum(found, switch_all_reduce_s(message, n, tier.bandwidth * rate.eff_switch, rate.switch))
    return found


def comm_s(
    kind: str,
    message_bytes: Numeric,
    ranks: Numeric,
    hardware: Accelerator,
    eff: Efficiency,
    *,
    network: Tier | str | None = None,
    stride: Numeric = 1,
) -> Numeric:
    """Seconds of a collective among `ranks` devices of a kind, those outside a link's domain reached over the network.

    kind
        all_reduce, all_gather, reduce_scatter, all_to_all, send. A `send` passes its message on from rank to rank:
        `message_bytes` is the sum over its n - 1 hops.
    stride
        how many devices lie between neighbours of the group: pipeline stages of `tp` devices each are `tp` apart.

    Everything broadcasts. At `Efficiency.ideal()` it is bytes over bandwidth, a lower bound.

    >>> h100, ideal = Accelerator.find("h100"), Efficiency.ideal()
    >>> round(float(comm_s("reduce_scatter", 16 * 2**20, 8, h100, ideal)) * 1e6, 1), float(comm_s("all_reduce", 1e6, 1, h100, ideal))
    (32.6, 0.0)
    """
    n = np.asarray(ranks, float)
    if np.all(n <= 1):
        return np.zeros(np.broadcast_shapes(n.shape, np.shape(message_bytes), np.shape(stride)))
    near, far = tiers(hardware, network=network)
    if eff.is_ideal:
        near, far = replace(near, latency_s=None), replace(far, latency_s=None)
    assert near.domain is not None  # a network alone joins devices without a limit
    domain = np.maximum(1.0, np.floor(near.domain / np.asarray(stride, float)))
    groups = np.ceil(n / domain)
    local = n / groups
    by_near, by_far = eff.link(near.name, near.kind), eff.link(far.name, far.kind)

    def inside(kind: str, message: Numeric) -> Numeric:
        return within_s(kind, message, local, near, by_near)

    def across(kind: str, message: Numeric) -> Numeric:
        return within_s(kind, message, groups, far, by_far)

    message = np.asarray(message_bytes, float)
    if np.all(groups == 1):
        return inside(kind, message)
    return np.where(groups > 1, _two_levels(kind, message, n, local, groups, inside, across), inside(kind, message))


Level = Callable[[str, Numeric], Numeric]


def _two_levels(kind: str, message: Numeric, n: Numeric, local: Numeric, groups: Numeric, inside: Level, across: Level) -> Numeric:
    """A collective in stages: inside the nodes, between like ranks of the nodes, inside again where needed."""
    if kind == "all_reduce":
        part = message / local
        return inside("reduce_scatter", message) + across("all_reduce", part) + inside("all_gather", part)
    if kind == "all_gather":
        return across("all_gather", message) + inside("all_gather", message * groups)
    if kind == "reduce_scatter":
        return inside("reduce_scatter", message) + across("reduce_scatter", message / local)
    if kind == "all_to_all":
        return inside("all_to_all", message * local / n) + across("all_to_all", message)
    hops = np.maximum(n - 1, 1)
    crossing = groups - 1
    return groups * inside("send", message * (hops - crossing) / hops / groups) + across("send", message * crossing / hops)
