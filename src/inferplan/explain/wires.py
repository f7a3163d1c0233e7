"""Seconds of collectives opened by algorithm, link and node. Knows no operator and no model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from inferplan.engine.op import Wire
from inferplan.engine.step import Step
from inferplan.explain.node import Node, by_formula, derived, leaf, product
from inferplan.explain.sources import fitted, stated
from inferplan.roofline.comm import LOW_LATENCY_SHARE, Tier, tiers
from inferplan.roofline.efficiency import Efficiency, LinkRate
from inferplan.specs.hardware import Accelerator
from inferplan.specs.link import links


@dataclass(frozen=True, slots=True)
class Way:
    """A tier with the calibration's rates on it."""

    tier: Tier
    rate: LinkRate
    eff: Efficiency
    hardware: Accelerator

    def of(self, label: str, value: float, unit: str = "s") -> Node:
        """A rate on this link."""
        return fitted(label, value, unit, self.eff, self.rate.basis, f"link {self.tier.name}", self.rate.note)

    @property
    def base(self) -> Node:
        """The start-up of a library's collective."""
        if self.tier.latency_s is None:
            return self.of("base_s", self.rate.base)
        return leaf("base_s", self.tier.latency_s, "s", f"link {self.tier.name}: its latency")

    def wire(self, value: float) -> Node:
        """A bandwidth of the link, from the part's file or the table of links."""
        part, table = self.hardware, links()
        own = part.link
        for number in (own.bandwidth, own.pair) if own and own.name == self.tier.name else ():
            if number is not None and number.value == value:
                return stated("wire", number, part.sources, owner=part.title)
        listed = table.links.get(self.tier.name)
        if listed and listed.bandwidth.value == value:
            return stated("wire", listed.bandwidth, table.sources, owner=f"link {listed.title}")
        lanes = part.pcie.lanes if part.pcie else 0
        whole = f"link {listed.title}, {lanes} lanes" if listed else f"link {self.tier.name}"
        return leaf("wire", value, "B/s", f"{whole}: the table of links")

    def reach(self, ranks: Node) -> Node:
        """The bandwidth towards the other ranks, at the share that collectives reach."""
        eff, whole = self.of("eff", self.rate.eff, ""), self.wire(self.tier.bandwidth)
        if self.tier.pair is None:
            return derived("bandwidth", "wire * eff", "B/s", whole, eff)
        pair = self.wire(self.tier.pair).named("pair")
        return derived("bandwidth", "minimum(wire, pair * maximum(ranks - 1, 1)) * eff", "B/s", whole, pair, ranks, eff)


def collective_s(label: str, wire: Wire, message: Node, ranks: Node, step: Step) -> Node:
    """Seconds of one collective, in stages where it leaves a link's domain."""
    setting, kind = step.setting, wire.kind
    near, far = tiers(step.hardware, network=setting.network)
    eff = setting.efficiency
    if eff.is_ideal:
        near, far = replace(near, latency_s=None), replace(far, latency_s=None)
    inside = Way(near, eff.link(near.name, near.kind), eff, step.hardware)
    across = Way(far, eff.link(far.name, far.kind), eff, step.hardware)
    n = ranks.named("ranks")
    domain = _domain(near, wire)
    groups = derived("groups", "ceil(ranks / domain)", "", n, domain)
    if groups.value == 1:
        return within(label, kind, message, n, inside)
    local = derived("local", "ranks / groups", "", n, groups)
    return _two_levels(label, kind, message, n, local, groups, inside, across)


def _domain(near: Tier, wire: Wire) -> Node:
    assert near.domain is not None  # a network alone joins devices without a limit
    size = leaf("devices", near.domain, "", f"link {near.name}: the most devices it joins")
    if np.all(np.asarray(wire.stride) == 1):
        return size.named("domain")
    stride = leaf("stride", wire.stride, "", "counted: devices between neighbours of the group")
    return derived("domain", "maximum(1, floor(devices / stride))", "", size, stride)


def within(label: str, kind: str, message: Node, ranks: Node, way: Way) -> Node:
    """Seconds of a collective over one tier."""
    n, block = ranks.named("ranks"), message.named("message_bytes")
    if n.value == 1:
        return leaf(label, 0.0, "s", "counted: one rank alone says nothing")
    if kind == "send":
        wire = way.wire(way.tier.pair or way.tier.bandwidth)
        text = "(ranks - 1) * base_s + message_bytes / (wire * eff)"
        return derived(label, text, "s", n, way.base, block, wire, way.of("eff", way.rate.eff, ""))
    if kind == "all_reduce":
        return _all_reduce(label, block, n, way)
    if kind == "all_gather":
        return _rounds(label, "spread_s", "block_bytes", block, n, way)
    share = derived("block_bytes", "message_bytes / ranks", "B", block, n)
    if kind == "all_to_all":
        none = leaf("hop_s", 0.0, "s", "counted: an all-to-all is one round")
        return by_formula(label, "spread_s", block_bytes=share, ranks=n, bandwidth=way.reach(n), base_s=way.base, hop_s=none)
    return _rounds(label, "spread_s", "block_bytes", share, n, way)


def _rounds(label: str, name: str, argument: str, message: Node, n: Node, way: Way) -> Node:
    """A collective of many rounds: quick ones at half of the bandwidth or slower ones in bulk, whichever ends first."""
    rest = {"ranks": n, "base_s": way.base}
    hop, bandwidth = way.of("hop_s", way.rate.hop), way.reach(n)
    if way.rate.hop_bulk is None:
        return by_formula(label, name, **{argument: message}, bandwidth=bandwidth, hop_s=hop, **rest)
    half = leaf("share", LOW_LATENCY_SHARE, "", "counted: a flag rides with every word")
    slow = derived("bandwidth", "bulk_bandwidth * share", "B/s", bandwidth.named("bulk_bandwidth"), half)
    quick = by_formula("quick_s", name, **{argument: message}, bandwidth=slow, hop_s=hop, **rest)
    bulk = by_formula("bulk_s", name, **{argument: message}, bandwidth=bandwidth, hop_s=way.of("hop_s", way.rate.hop_bulk), **rest)
    return derived(label, "minimum(quick_s, bulk_s)", "s", quick, bulk)


def _all_reduce(label: str, message: Node, n: Node, way: Way) -> Node:
    """The cheapest of the algorithms that the tier allows."""
    rate = way.rate
    found = [_rounds("ring_s", "ring_all_reduce_s", "message_bytes", message, n, way)]
    if rate.one_shot is not None and np.all(np.asarray(n.value) <= (rate.ranks or np.inf)):
        inputs = {"message_bytes": message, "ranks": n, "bandwidth": way.reach(n), "start_s": way.of("start_s", rate.one_shot)}
        found.append(by_formula("one_shot_s", "one_shot_all_reduce_s", **inputs))
        found.append(by_formula("two_shot_s", "two_shot_all_reduce_s", **inputs))
    if way.tier.reduces and rate.eff_switch is not None:
        reach = product("bandwidth", "B/s", way.wire(way.tier.bandwidth), way.of("eff_switch", rate.eff_switch, ""))
        start = way.of("start_s", rate.switch)
        found.append(by_formula("switch_s", "switch_all_reduce_s", message_bytes=message, ranks=n, bandwidth=reach, start_s=start))
    if len(found) == 1:
        return found[0].named(label)
    return derived(label, f"least({', '.join(f.label for f in found)})", "s", *found)


def _two_levels(
    label: str, kind: str, message: Node, n: Node, local: Node, groups: Node, inside: Way, across: Way
) -> Node:  # fmt: skip
    """A collective in stages: inside the nodes, between like ranks of the nodes, inside again where needed."""
    whole = message.named("message_bytes")

    def part(text: str, *nodes: Node) -> Node:
        return derived("message_bytes", text, "B", whole, *nodes)

    stages = {
        "all_reduce": (("reduce_scatter", whole, part("message_bytes / local", local), "all_reduce"), True),
        "all_gather": (("all_gather", part("message_bytes * groups", groups), whole, "all_gather"), False),
        "reduce_scatter": (("reduce_scatter", whole, part("message_bytes / local", local), "reduce_scatter"), False),
        "all_to_all": (("all_to_all", part("message_bytes * local / ranks", local, n), whole, "all_to_all"), False),
    }
    if kind == "send":
        return _send_across(label, whole, n, local, groups, inside, across)
    (near, near_message, far_message, far), again = stages[kind]
    found = [within("inside_s", near, near_message, local, inside), within("across_s", far, far_message, groups, across)]
    if again:
        found.append(within("gather_s", "all_gather", far_message, local, inside))
    return derived(label, " + ".join(f.label for f in found), "s", *found)


def _send_across(label: str, whole: Node, n: Node, local: Node, groups: Node, inside: Way, across: Way) -> Node:
    hops = derived("hops", "maximum(ranks - 1, 1)", "", n)
    crossing = derived("crossing", "groups - 1", "", groups)
    near = derived("message_bytes", "message_bytes * (hops - crossing) / hops / groups", "B", whole, hops, crossing, groups)
    far = derived("message_bytes", "message_bytes * crossing / hops", "B", whole, crossing, hops)
    first, second = within("inside_s", "send", near, local, inside), within("across_s", "send", far, groups, across)
    return derived(label, "groups * inside_s + across_s", "s", groups, first, second)
