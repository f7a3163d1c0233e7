"""Links between devices and between nodes: bandwidth one way, latency, practical share. Knows no collective and no part."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from inferplan.errors import NotFound, Unsupported, near_misses, shown
from inferplan.specs.base import Record
from inferplan.specs.catalog import data_file, normalise
from inferplan.specs.quantity import BytesPerS, Pure, Seconds, Sourced

Scope = Literal["scale-up", "scale-out", "host"]
Protocol = Literal["LL", "LL128", "Simple"]


class Link(Record):
    """One kind of link, per device and one way.

    `practical` is the share of the bandwidth that large transfers were measured to reach (`practical_nvls` with
    reduction in the switch, where a bus bandwidth can exceed the wire). `lanes` counts the links of a device.
    """

    title: str
    scope: Scope
    devices: Annotated[tuple[str, ...], Field(strict=False)] = ()
    bandwidth: BytesPerS
    lanes: int | None = Field(default=None, ge=1)
    per_lane: BytesPerS | None = None
    practical: Pure | None = None
    practical_nvls: Pure | None = None
    latency: Seconds | None = None
    topology: str | None = None
    note: str | None = None


class Hop(Record):
    """The latency of one hop in the NCCL cost model, by algorithm and protocol."""

    tree: dict[Protocol, Seconds] = Field(default_factory=dict)
    ring: dict[Protocol, Seconds] = Field(default_factory=dict)
    nvls: Seconds | None = None
    nvls_tree: Seconds | None = None


class Nccl(Record):
    """The constants of NCCL's own latency and bandwidth model, as its tuning code states them."""

    base: Hop
    hop: dict[str, Hop]
    host_overhead: dict[str, Seconds] = Field(default_factory=dict)
    nvls_efficiency: dict[str, Pure] = Field(default_factory=dict)
    ll_bandwidth: dict[str, BytesPerS] = Field(default_factory=dict)
    note: str | None = None


class Observation(Record):
    """A measured latency of one small collective, or what another tool assumes for it."""

    title: str
    latency: Seconds
    note: str | None = None


class Links(Sourced):
    """The table `hardware/links.yaml`."""

    links: dict[str, Link]
    nccl: Nccl
    observed: dict[str, Observation] = Field(default_factory=dict)

    def find(self, text: str) -> Link:
        """The link of a name or title; raises NotFound with near misses."""
        key = normalise(text)
        for name, link in self.links.items():
            if key in (name, normalise(link.title)):
                return link
        raise NotFound(f"no link called '{shown(text)}'{near_misses(key, self.links, n=4)}")

    def pcie_bytes_per_s(self, gen: int, lanes: int = 16) -> float:
        """The one-way bandwidth of a PCIe slot; raises Unsupported for a generation that the table lacks.

        >>> links().pcie_bytes_per_s(5, 16), links().pcie_bytes_per_s(4, 8)
        (63000000000.0, 15750000000.0)
        """
        slot = self.links.get(f"pcie-{gen}")
        if slot is None or slot.lanes is None:
            raise Unsupported(f"the table of links has no PCIe generation {gen}")
        return slot.bandwidth.value * lanes / slot.lanes


@cache
def _read(path: Path) -> Links:
    return Links.load(path)


def links(environ: Mapping[str, str] | None = None) -> Links:
    """The table of links on the search path, read once.

    >>> links().find("NVLink 4").bandwidth.value
    450000000000.0
    """
    return _read(data_file("hardware", "links.yaml", environ))
