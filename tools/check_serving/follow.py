"""Follows a recorded run iteration by iteration: makes every plan anew from what the trace says of the time before, and
compares it with the plan that was carried out; does the same with working sets and with the pool of all rows."""

import collections

from algorithm import Plan


class Comparison:
    """Counts what was compared, and keeps what differs."""

    def __init__(self):
        self.compared = collections.Counter()
        self.differences = []

    def of(self, iteration, what, trace, here):
        self.compared[what] += 1
        if trace != here:
            self.differences.append(f"iteration {iteration}, {what}: the trace has {trace}, this program {here}")

    def words(self):
        total = sum(self.compared.values())
        return f"{total} values compared, " + (f"{len(self.differences)} differ" if self.differences else "all the same")


class Pool:
    """One list of blocks for all rows and layers; the least recently selected leaves first."""

    def __init__(self):
        self.order = collections.OrderedDict()

    def leave(self, request):
        for block in [block for block in self.order if block[0] == request]:
            del self.order[block]

    def select(self, blocks, slots, by_number):
        """Makes the blocks the most recently selected ones, and drops the oldest beyond `slots`. Returns the blocks that were
        missing. Among the selected blocks the lower number is older; without by_number, those that were there are older
        than those that came."""
        missing = [block for block in blocks if block not in self.order]
        there = [block for block in blocks if block in self.order]
        for block in blocks if by_number else there + missing:
            self.order[block] = None
            self.order.move_to_end(block)
        while len(self.order) > slots:
            self.order.popitem(last=False)
        return missing

    def keep(self, block):
        """Gives a slot to a block that is on the device already."""
        self.order[block] = None
        self.order.move_to_end(block)


class Follower:
    def __init__(self, recorded):
        self.trace, self.s = recorded, recorded.settings
        self.requests = recorded.requests
        self.running, self.paused, self.over = [], [], 0
        self.pools = collections.defaultdict(Pool)  # one for the device, or one for each (request, layer, head)
        self.seen = Comparison()

    def follow(self):
        for request in self.requests.values():
            if request.had_row:
                self.seen.of("-", f"host bytes of request {request.id}", request.told_host, request.host)
                self.seen.of("-", f"device bytes of request {request.id}", request.told_device, request.device)
        for row in self.trace.iterations:
            self.drop_cancelled(row["start_ns"])
            plan = Plan(self.s, row["start_ns"], self.waiting(row), self.running, self.paused, self.over)
            self.compare(row, plan)
            self.begin(row, plan)
            self.account(row["iteration"], plan)
            self.end(row)
        return self.seen

    def drop_cancelled(self, now):
        for request in self.requests.values():
            # An answer that ends at a text ends when the server has told the engine so, between two iterations.
            cancelled = request.status in ("cancelled", "stop") and request.end is not None and request.end <= now
            turned_away = request.status in ("refused", "failed") and request.end is not None and request.end < now
            if request.state != "gone" and (cancelled or turned_away):
                self.leave(request)

    def leave(self, request):
        for queue in (self.running, self.paused):
            if request in queue:
                queue.remove(request)
        self.give_slots_back(request)
        request.state = "gone"

    def slots(self, plan, id):
        if self.s.pooled:
            return plan.available() // self.s.block_bytes
        request = self.requests[id]
        return self.s.partition(-(-(request.prompt + request.tokens) // self.s.block_tokens))

    def give_slots_back(self, request):
        for pool in self.pools.values():
            pool.leave(request.id)

    def waiting(self, row):
        """Who waited when the plan was made. The trace has arrivals; a request that came while the iteration before it
        ended may have missed this plan, which the number of those that wait shows."""
        waiting = [request for request in self.requests.values()
                   if request.state == "queued" and request.arrival <= row["start_ns"]]
        return waiting[:row["waiting"] + row["admitted"] + row["refused"]]

    def position_after(self, member):
        request = self.requests[member["request"]]
        if self.s.chunks:
            return 0, request.token + member["tokens"]
        if member["layer_to"] > request.layer:
            return member["layer_to"], 0
        return member["layer_to"], request.token + member["tokens"]

    def tokens_of(self, segment):
        """How many tokens a part of a prompt reads in the layer in which it stops."""
        request, within = segment.request, segment.token > 0 or self.s.chunks
        last = segment.layer if within else segment.layer - 1
        begun = request.token if last == request.layer else 0
        return (segment.token if within else request.prompt) - begun

    def compare(self, row, plan):
        iteration, ids = row["iteration"], lambda requests: [request.id for request in requests]
        members, event = self.trace.members[iteration], lambda kind: self.trace.events[iteration, kind]
        same = lambda what, trace, here: self.seen.of(iteration, what, trace, here)
        same("who decodes", sorted(m["request"] for m in members if m["kind"] == "decode"), sorted(ids(plan.decodes())))
        same("who is paused", event("paused"), ids(plan.paused))
        same("who is resumed", event("resumed"), ids(plan.resumed))
        same("who is admitted", event("admitted"), ids(plan.admitted))
        same("refusals", row["refused"], len(plan.refused))
        same("where prompts stop", sorted((m["request"], *self.position_after(m)) for m in members
                                          if m["kind"] == "prefill"),
             sorted((segment.request.id, segment.layer, segment.token) for segment in plan.segments))
        same("prompt tokens", sorted((m["request"], m["tokens"]) for m in members if m["kind"] == "prefill"),
             sorted((segment.request.id, self.tokens_of(segment)) for segment in plan.segments))
        same("how many wait", row["waiting"], len(plan.waiting) - len(plan.admitted))
        same("working sets", row["ws_bytes"], plan.used["working_sets"])
        same("M_avl", row["mavl_bytes"], plan.available())
        same("hard need", row["hard_bytes"], plan.used["hard"])
        same("device bytes", row["device_bytes"], plan.used["device"])
        same("scratch bytes", row["scratch_bytes"], plan.used["scratch"])
        same("host bytes", row["host_bytes"], plan.used["host"])
        same("what limits", row["limited_by"], plan.limited_by())
        if self.s.checks_predictions():
            told = row["predicted_ns"] / 1e6
            same("predicted ms", told, told if abs(told - plan.ms) < 2e-3 else plan.ms)

    def begin(self, row, plan):
        """What the iteration did before its steps, as the trace tells it."""
        requests = lambda kind: [self.requests[r] for r in self.trace.events[row["iteration"], kind]]
        self.over = self.over + 1 if plan.over() else 0
        admitted = requests("admitted")
        queue = list(self.requests.values())
        last = max((queue.index(request) for request in admitted), default=-1)
        for request in plan.waiting:
            request.skips += request not in admitted and queue.index(request) < last
        for request in requests("paused"):
            request.state, request.pauses = "paused", request.pauses + 1
            self.running.remove(request)
            self.paused.append(request)
            self.give_slots_back(request)
        for request in requests("resumed"):
            request.state, request.since_resume = "decode", 0
            self.paused.remove(request)
            self.running.append(request)
        for request in admitted:
            request.state, request.last_segment = "prefill", row["start_ns"]
            self.running.append(request)
        for request in plan.refused:
            request.state = "gone" if request.status == "refused" else request.state

    def account(self, iteration, plan):
        """Working sets, hits and misses from the recorded selections."""
        members = {m["row"]: m for m in self.trace.members[iteration] if m["kind"] == "decode"}
        selections = self.trace.selections.get(iteration)
        if not selections or not self.s.offload:
            return
        tenants = {row: self.requests[m["request"]] for row, m in members.items()}
        order = {request.id: place for place, request in enumerate(plan.decodes())}
        if any(request.id not in order for request in tenants.values()):
            return  # the plans differ, which has been reported
        newest = {id: self.requests[id].prompt + self.requests[id].generated - 1 for id in order}  # its position
        hits, misses = collections.Counter(), collections.Counter()
        for layer in range(self.s.layers):
            wanted = collections.defaultdict(list)  # [pool]
            chosen = [s for s in selections if s[0] == layer]
            for _, row, head, ids in sorted(chosen, key=lambda s: (order[tenants[s[1]].id], s[2])):
                request = tenants[row]
                steps = request.steps.setdefault((layer, head), [])
                steps.append(set(ids))
                del steps[:-self.s.window]
                hits[request.id] += len(ids)
                last = newest[request.id] // self.s.block_tokens
                if self.s.pooled:  # outside of the pool until it is full
                    wanted[None] += [(request.id, layer, head, block) for block in ids if block != last]
                else:  # in one of the row's slots from its first token on
                    pool = request.id, layer, head
                    self.pools[pool].keep((*pool, last))
                    wanted[pool] = [(*pool, block) for block in ids]
            for pool, blocks in wanted.items():
                for block in self.pools[pool].select(blocks, self.slots(plan, pool and pool[0]), not self.s.pooled):
                    hits[block[0]] -= 1
                    misses[block[0]] += 1
            for id in order:
                if self.s.pooled and (newest[id] + 1) % self.s.block_tokens == 0:  # full now
                    for head in range(self.s.heads):
                        self.pools[None].keep((id, layer, head, newest[id] // self.s.block_tokens))
        for member in members.values():
            request = self.requests[member["request"]]
            self.seen.of(iteration, f"hits and misses of request {request.id}", (member["hits"], member["misses"]),
                         (hits[request.id], misses[request.id]))
            if self.s.pooled:
                union = sum(len(set().union(*steps)) for steps in request.steps.values()) * self.s.block_bytes
                self.seen.of(iteration, f"working set of request {request.id}", member["ws_bytes"], union)

    def end(self, row):
        for member in self.trace.members[row["iteration"]]:
            request = self.requests[member["request"]]
            if member["kind"] == "decode":
                request.generated += 1
                request.since_resume += 1
            else:
                request.layer, request.token = self.position_after(member)
                request.last_segment = row["start_ns"] + row["duration_ns"]
                if member["token_ns"] is not None:
                    request.state, request.generated = "decode", 1
            if self.s.offload:
                request.working_set = member["ws_bytes"]
            stopped = request.status == "stop" and request.end <= row["start_ns"] + row["duration_ns"]
            if request.generated >= request.tokens or stopped:
                self.leave(request)
