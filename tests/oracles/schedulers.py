"""Schedulers as plain loops over requests, a step at a time: slow, and written apart from the simulator, to check it."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil


@dataclass
class R:
    i: int
    arrival: float
    prompt: int
    output: int
    most: int
    chain: tuple[int, ...] = ()
    made: int = 0
    computed: int = 0
    goal: int = 0
    shared: list[int] = field(default_factory=list)
    begun: float | None = None
    first: float | None = None
    finish: float | None = None
    preempted: int = 0
    cached: int = 0
    tokens_at: list[float] = field(default_factory=list)

    @property
    def prefilling(self) -> bool:
        return self.computed < self.goal


class Naive:
    """What all have in common: a clock, a queue, running requests in order of admission, a count of blocks."""

    mixes = True

    def __init__(
        self, rows, steps, *, block=16, blocks=10**9, budget=2048, slots=256, chunked=True, whole=True, watermark=0, unit=0, **more
    ):
        self.future = [R(i, *row) for i, row in enumerate(rows)]
        self.all = list(self.future)
        self.steps, self.block, self.blocks, self.budget, self.slots = steps, block, blocks, budget, slots
        self.chunked, self.whole, self.watermark, self.unit = chunked, whole, watermark, unit
        self.more = more
        self.now, self.waiting, self.running, self.log = 0.0, [], [], []
        self.queue = [("free", None)] * blocks if unit else None  # one entry per free block, next to be taken first
        self.found: dict[int, int] = {}  # hash -> requests that use it
        self.full = None
        self.most_blocks = 0
        self.start()

    def start(self):
        pass

    # blocks ------------------------------------------------------------------------------------------------------------------
    def own(self, r, tokens=None):
        return ceil(((r.computed if tokens is None else tokens) - len(r.shared) * self.unit) / self.block)

    def used(self):
        return sum(self.own(r) for r in self.running) + len(self.found) * (self.unit // self.block if self.unit else 0)

    def free(self):
        return self.blocks - self.used()

    def take(self, n):
        if self.queue is not None:
            for _ in range(n):
                kind, h = self.queue.pop(0)
                if kind == "hash":  # the whole unit is lost
                    self.queue = [("free", None) if e == ("hash", h) else e for e in self.queue]

    def put_back(self, r):
        if self.queue is None:
            return
        self.queue += [("free", None)] * self.own(r)
        for h in reversed(r.shared):
            self.found[h] -= 1
            if not self.found[h]:
                del self.found[h]
                self.queue += [("hash", h)] * (self.unit // self.block)
        r.shared = []

    def hits(self, r, goal):
        n = 0
        while n < len(r.chain) and (n + 1) * self.unit <= goal - 1 and (r.chain[n] in self.found or ("hash", r.chain[n]) in self.queue):
            n += 1
        return n

    def borrow(self, r, units):
        for h in r.chain[:units]:
            if h not in self.found:
                self.queue = [e for e in self.queue if e != ("hash", h)]
                self.found[h] = 0
            self.found[h] += 1
        r.shared = list(r.chain[:units])
        r.computed = units * self.unit

    def compute(self, r, n):
        """Blocks for n more tokens; prompt units that become complete can be found by hash from now on."""
        self.take(self.own(r, r.computed + n) - self.own(r))
        of_prompt = r.computed < r.goal
        r.computed += n
        if self.unit and of_prompt:
            for h in r.chain[len(r.shared) : min(r.computed, r.goal) // self.unit]:
                if h in self.found or ("hash", h) in self.queue:
                    break
                r.shared.append(h)
                self.found[h] = 1

    # requests ------------------------------------------------------------------------------------------------------------------
    def preempt(self, r, *, back=False):
        self.running.remove(r)
        self.put_back(r)
        r.computed, r.preempted = 0, r.preempted + 1
        if back:
            self.waiting.append(r)
        else:
            self.waiting.insert(0, r)

    def admit(self, r, take, batch):
        self.waiting.remove(r)
        self.running.append(r)
        if r.begun is None:
            r.begun, r.cached = self.now, r.computed
        self.schedule(r, take, batch)

    def schedule(self, r, take, batch):
        batch.append((r, r.computed, take))
        self.compute(r, take)

    def run(self):
        while self.future or self.waiting or self.running:
            while self.looks() and self.future and self.future[0].arrival <= self.now:
                self.waiting.append(self.future.pop(0))
            if not self.waiting and not self.running:
                self.now = self.future[0].arrival
                continue
            self.step()
        return self.all

    def step(self):
        batch = self.form()
        self.most_blocks = max(self.most_blocks, self.used())
        assert batch, "nothing to do"
        decodes = [(r, past) for r, past, n in batch if past >= r.goal]
        prompts = [(r, past, n) for r, past, n in batch if past < r.goal]
        held = sum(past for _, past in decodes)
        if prompts:
            pairs = sum(n * (past + (n + 1) / 2) for _, past, n in prompts)
            dt = self.steps.mixed(len(decodes), held, sum(n for *_, n in prompts), pairs, len(prompts))
        else:
            dt = self.steps.decode(len(decodes), held)[0]
        self.log.append((self.now, [(r.i, n) for r, _, n in batch], self.used()))
        self.now += dt
        ended = []
        for r, *_ in batch:
            if not r.prefilling:
                r.made += 1
                r.tokens_at.append(self.now)
                r.first = self.now if r.first is None else r.first
                if r.made == r.output:
                    r.finish = self.now
                    ended.append(r)
        for r in self.leaving_order(ended, batch):
            self.running.remove(r)
            self.put_back(r)
        self.after(batch)

    def leaving_order(self, ended, batch):
        decodes = {r.i for r, past, _ in batch if past >= r.goal}
        return [r for r in ended if r.i in decodes] + [r for r in ended if r.i not in decodes]

    def after(self, batch):
        pass

    def looks(self):
        return True

    def begin(self, r):
        r.goal = r.prompt + r.made
        return r.goal


class MixedLoop(Naive):
    def form(self):
        budget, batch, preempted = self.budget, [], False
        for r in list(self.running):
            if r not in self.running:
                continue
            n = min(r.goal - r.computed, budget) if r.prefilling else 1
            need = self.own(r, r.computed + n) - self.own(r)
            while need > self.free() and r in self.running:
                self.preempt(self.running[-1])
                preempted = True
            if r not in self.running:
                break
            self.schedule(r, n, batch)
            budget -= n
        while not preempted and self.waiting and budget and len(self.running) < self.slots:
            r = self.waiting[0]
            goal = self.begin(r)
            units = self.hits(r, goal) if self.unit else 0
            past = units * self.unit
            n = min(goal - past, budget)
            if past + n < goal and not self.chunked:
                break
            revived = sum(h not in self.found for h in r.chain[:units]) * (self.unit // self.block if self.unit else 0)
            need = ceil(((goal if self.whole else past + n) - past) / self.block) + revived
            if need + (self.watermark if self.running else 0) > self.free():
                break
            if units:
                self.borrow(r, units)
            self.admit(r, n, batch)
            budget -= n
        return batch


class PrefillFirstLoop(Naive):
    def form(self):
        batch, budget = [], self.budget
        while self.waiting and budget and len(self.running) < self.slots:
            r = self.waiting[0]
            goal = self.begin(r)
            units = self.hits(r, goal) if self.unit else 0
            past = units * self.unit
            if goal - past > budget:
                break
            revived = sum(h not in self.found for h in r.chain[:units]) * (self.unit // self.block if self.unit else 0)
            if ceil((goal - past) / self.block) + revived + (self.watermark if self.running else 0) > self.free():
                break
            if units:
                self.borrow(r, units)
            self.admit(r, goal - past, batch)
            budget -= goal - past
        if batch:
            return batch
        for r in list(self.running):
            if r not in self.running:
                continue
            need = self.own(r, r.computed + 1) - self.own(r)
            while need > self.free() and r in self.running:
                self.preempt(self.running[-1])
            if r in self.running:
                self.schedule(r, 1, batch)
        return batch


class ReservingLoop(Naive):
    def need(self, r):
        return ceil((r.prompt + r.most) / self.block)

    def form(self):
        budget, batch = self.budget, []
        for r in self.running:
            n = min(r.goal - r.computed, budget) if r.prefilling else 1
            self.schedule(r, n, batch)
            budget -= n
        self.fill(batch, budget)
        return batch

    def fill(self, batch, budget):
        while self.waiting and budget > 0 and len(self.running) < self.slots:
            r = self.waiting[0]
            n = min(self.begin(r), budget)
            if (n < r.goal and not self.chunked) or sum(map(self.need, self.running)) + self.need(r) > self.blocks:
                break
            self.admit(r, n, batch)
            budget -= n


class AlternatingLoop(ReservingLoop):
    def start(self):
        self.since = 1

    def form(self):
        batch = []
        ratio, patience = self.more.get("served_ratio", 0.3), self.more.get("patience", 20)
        if self.waiting and (not self.running or self.since >= patience or len(self.waiting) >= int(len(self.running) * ratio)):
            self.fill(batch, self.budget)
        if batch:
            self.since = 1
            return batch
        self.since += 1
        for r in self.running:
            self.schedule(r, 1, batch)
        return batch


class RetractingLoop(Naive):
    def start(self):
        self.ratio = self.more.get("ratio", 0.7)
        self.least, self.decay = self.more.get("least", 0.098), self.more.get("decay", 0.602 / 600)
        self.clip, self.headroom = self.more.get("clip", 4096), self.more.get("headroom", 20)
        self.full = None
        self.counter = self.interval = self.more.get("interval", 1)

    def looks(self):
        return self.counter >= self.interval or not self.running

    def after(self, batch):
        if self.counter >= self.interval:
            self.counter = 0
        self.counter += 1000 if any(past < r.goal for r, past, _ in batch) else 1

    def decodes(self):
        return [r for r in self.running if not r.prefilling]

    def form(self):
        batch, budget = [], self.budget
        decodes = self.decodes()
        for r in self.running:
            if r.prefilling:
                n = min(r.goal - r.computed, budget)
                self.schedule(r, n, batch)
                budget -= n
        if self.waiting and budget and (self.full != len(decodes) or not (decodes or batch)):
            self.full = None
            ahead = sum(min(r.most - r.made, self.clip) for r in decodes)
            room = self.free() - self.ratio * ahead - sum(min(r.most, self.clip) for r, *_ in batch if not r.prefilling)
            while self.waiting and budget:
                r = self.waiting[0]
                goal = self.begin(r)
                units = self.hits(r, goal) if self.unit else 0
                past = units * self.unit
                revived = sum(h not in self.found for h in r.chain[:units]) * (self.unit // self.block if self.unit else 0)
                asked = goal - past + revived + min(r.most - r.made, self.clip)
                n = min(goal - past, budget)
                if len(self.running) == self.slots or asked >= room or (past + n < goal and not self.chunked):
                    self.full = len(decodes)
                    break
                if units:
                    self.borrow(r, units)
                self.admit(r, n, batch)
                room -= asked
                budget -= n
        if batch:
            return batch
        if self.free() < len(decodes):
            self.retract(decodes)
            decodes = self.decodes()
        self.ratio = max(self.least, self.ratio - self.decay)
        for r in decodes:
            self.schedule(r, 1, batch)
        return batch

    def retract(self, decodes):
        left = sorted(decodes, key=lambda r: (-r.made, r.prompt))
        first = True
        while len(left) > 1 and (first or self.free() < len(left) * self.headroom):
            first = False
            self.preempt(left.pop(), back=True)
        self.ratio = min(1.0, (sum(r.made for r in left) + self.headroom * len(left)) / (sum(r.most for r in left) + 1))
        self.full = None


LOOPS = {
    "vllm-v1": MixedLoop,
    "vllm-v0-chunked": MixedLoop,
    "tensorrt-llm-max-utilization": MixedLoop,
    "vllm-v0": PrefillFirstLoop,
    "tensorrt-llm": ReservingLoop,
    "tgi": ReservingLoop,
    "tgi-v2": AlternatingLoop,
    "sglang": RetractingLoop,
}
