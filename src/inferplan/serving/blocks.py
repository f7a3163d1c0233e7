"""Blocks of cache that requests share, found by hash and kept until others need them. Knows no clock and no scheduler.

All free blocks stand in one queue, as in vLLM: what was freed longest ago is taken first, whether it can still be found by a hash or
not. A request frees its blocks from the last to the first, so that the tail of a prompt is lost before its head.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class PrefixCache:
    """Blocks found by hash, in units of `per_unit` blocks; hashes are whole numbers from 0, each of a unit and all before it.

    >>> cache = PrefixCache(4, 1)
    >>> cache.settle(2)
    >>> cache.share(7), cache.share(8), cache.give(0, [7, 8])
    (True, True, None)
    >>> cache.hits([7, 8, 9], 3), cache.hits([7, 8, 9], 1)
    (2, 1)
    >>> cache.settle(3); cache.hits([7, 8, 9], 3)  # the tail went first
    1
    """

    __slots__ = ("garbage", "idle", "per_unit", "private", "used")

    def __init__(self, blocks: int, per_unit: int) -> None:
        self.per_unit, self.private, self.garbage = per_unit, 0, -1
        self.idle: OrderedDict[int, int] = OrderedDict({self.garbage: blocks})
        self.used: dict[int, int] = {}

    @property
    def shared_blocks(self) -> int:
        """Blocks in use that are found by hash."""
        return len(self.used) * self.per_unit

    def hits(self, chain: Sequence[int], most: int) -> int:
        """Units at the head of a chain that lie in cache, at most so many."""
        used, idle = self.used, self.idle
        for i in range(min(most, len(chain))):
            if chain[i] not in used and chain[i] not in idle:
                return i
        return min(most, len(chain))

    def revived(self, chain: Iterable[int]) -> int:
        """Blocks of these units that are free as yet, so that to hold them takes free blocks."""
        return self.per_unit * sum(h not in self.used for h in chain)

    def hold(self, chain: Iterable[int]) -> None:
        """One more request uses these units, all in cache."""
        for h in chain:
            if h in self.used:
                self.used[h] += 1
            else:
                del self.idle[h]
                self.used[h] = 1

    def share(self, unit: int) -> bool:
        """Let a unit that was a request's own be found by hash; false where another one is found by it already."""
        if unit in self.used or unit in self.idle:
            return False
        self.used[unit] = 1
        self.private -= self.per_unit
        return True

    def settle(self, private: int) -> None:
        """Requests hold so many blocks of their own now: take what is new from the head of the queue."""
        need = private - self.private
        self.private = private
        idle = self.idle
        while need > 0:
            key, count = idle.popitem(last=False)
            if count > need:
                self.garbage -= 1
                idle[self.garbage] = count - need
                idle.move_to_end(self.garbage, last=False)
            need -= count

    def give(self, private: int, chain: Sequence[int]) -> None:
        """A request frees so many blocks of its own, then the units that it used, the last one first."""
        if private:
            self.garbage -= 1
            self.idle[self.garbage] = private
            self.private -= private
        for h in reversed(chain):
            count = self.used.pop(h)
            if count > 1:
                self.used[h] = count - 1
            else:
                self.idle[h] = self.per_unit
