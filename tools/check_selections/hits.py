"""Which chosen units were on the device: every cache simulated from what was chosen before."""

from method import ceil_div


class Slots:
    """Block slots of one KV head: what is wanted and has none takes the place of what is not wanted."""

    def __init__(self, count, policy):
        self.map, self.used, self.policy = [None] * count, [-1] * count, policy

    def admit(self, wanted, fresh, step):
        """-> the blocks of `wanted` that were there; `fresh` begins now and needs no transfer."""
        hits = {b for b in wanted if b in self.map or b == fresh}
        free = [i for i, b in enumerate(self.map) if b not in wanted]
        if self.policy != "keep-selected":  # of equal age the lower block; empty slots have never been used
            free.sort(key=lambda i: (self.used[i], -1 if self.map[i] is None else self.map[i]))
        for slot, block in zip(free, sorted(set(wanted) - set(self.map))):
            self.map[slot] = block
        for block in wanted:
            self.used[self.map.index(block)] = step
        return hits

    def rank(self, block, use):
        """Makes a block count as used then (lru-s)."""
        self.used[self.map.index(block)] = use


class BlockCache:
    """Of one sequence in the layers whose blocks are offloaded."""

    def __init__(self, shape, size, slots, policy, prompt, seeds=None):
        self.size, self.prompt = size, prompt
        self.heads = {(layer, g): Slots(slots, policy) for layer in range(shape.layers) for g in range(shape.kv_heads)}
        tail = {prompt // size} if prompt % size else set()
        for key, slots in self.heads.items():  # a prompt leaves its incomplete block, and what the method begins with
            slots.admit((seeds or {}).get(key, set()) | tail, None, 0)

    def step(self, layer, g, chosen, n):
        """chosen: None: everything. -> hits"""
        fresh = (n - 1) // self.size if (n - 1) % self.size == 0 else None
        wanted = set(range(ceil_div(n, self.size))) if chosen is None else set(chosen)
        return self.heads[layer, g].admit(wanted, fresh, n - self.prompt)
