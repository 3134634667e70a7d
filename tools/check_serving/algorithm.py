"""SparseServe's Algorithm 1 with the choices that docs/serving.md makes where the paper leaves them open, written from
the text and not from core/serve/scheduler.cpp."""

import dataclasses

SLACK = 1e-9  # ms: sums of times in another order


@dataclasses.dataclass
class Segment:
    request: object
    layer: int
    token: int
    ms: float
    last: bool


class Plan:
    """The plan of one iteration, made from the requests that wait, run and are paused, in the order of their queues."""

    def __init__(self, settings, now, waiting, running, paused, iterations_over):
        self.s, self.now, self.over_before = settings, now, iterations_over
        self.waiting, self.running, self.were_paused = list(waiting), running, paused
        self.used = dict.fromkeys(("rows", "host", "device", "scratch", "hard", "working_sets"), 0)
        for request in running:
            self.take(request, fixed=True, elastic=True, scratch=request.state == "prefill")
        for request in paused:
            self.take(request, fixed=True)
        self.refused, self.paused, self.resumed, self.admitted, self.segments = [], [], [], [], []
        self.closed = False  # a prompt in chunks has the whole device
        self.not_resumed = self.holder = self.queue = self.prompt = None  # names of what limited each part of the plan
        self.refuse()
        self.choose_decodes()
        rows = self.decodes()
        context = sum(request.prompt + request.generated for request in rows)
        self.ms = settings.decode_ms(len(rows), context) + settings.overhead_ms(len(rows))
        self.left = settings.budget_ms() - self.ms
        self.tokens = len(rows)
        self.read_prompts()
        self.admit()
        self.read_admitted()

    # memory
    def take(self, request, fixed=False, elastic=False, scratch=False, times=1):
        if fixed:
            for name, amount in (("rows", 1), ("host", request.host), ("device", request.device)):
                self.used[name] += times * amount
        if elastic:
            self.used["hard"] += times * request.hard
            self.used["working_sets"] += times * request.working_set
        if scratch:
            self.used["scratch"] += times * request.scratch

    def available(self):
        return self.s.device - self.used["device"]

    def lacking(self, request, fixed=False, hard=None, working_set=None):
        """What is short for the request; None: it fits."""
        hard = request.hard if hard is None else hard
        working_set = request.working_set if working_set is None else working_set
        device = self.used["device"] + (request.device if fixed else 0)
        if fixed and self.used["rows"] + 1 > self.s.rows:
            return "rows"
        if fixed and self.used["host"] + request.host > self.s.host:
            return "host_memory"
        if device > self.s.device:
            return "device_memory"
        if fixed and self.used["scratch"] + request.scratch > self.s.scratch:
            return "prefill_scratch"
        if device + self.used["hard"] + hard > self.s.device:
            return "hard_need"
        if self.s.control and device + self.used["working_sets"] + working_set > self.s.device:
            return "working_sets"
        return None

    def alone(self, request):
        """The most device memory that must be there at once for the request to go on while nothing else runs."""
        if not self.s.offload:
            return 0
        decode = request.hard if self.s.pooled else max(request.hard, request.working_set)
        if self.s.chunks and request.state in ("queued", "prefill"):
            return max(decode, request.prompt * self.s.layers * self.s.layer_token_bytes())
        return decode

    # the queue's front door
    def refuse(self):
        for request in list(self.waiting):
            if (request.device + self.alone(request) > self.s.device or request.host > self.s.host
                    or request.scratch > self.s.scratch):
                self.refused.append(request)
                self.waiting.remove(request)

    # decodes
    def over(self):
        return self.s.control and self.used["working_sets"] > self.available()

    def decodes(self):
        return self.going_on + self.resumed

    def choose_decodes(self):
        self.going_on = [request for request in self.running if request.state == "decode"]
        self.reading = [request for request in self.running if request.state == "prefill"]
        if self.over_before >= self.s.knobs["pause_after"]:
            while self.over() and len(self.going_on) + len(self.reading) > 1:
                may = [request for request in self.going_on
                       if request.pauses == 0 or request.since_resume >= self.s.knobs["resume_tokens"]]
                if not may:
                    break
                freed = max(may, key=lambda r: (r.working_set / max(1, r.tokens - r.generated), self.running.index(r)))
                self.take(freed, elastic=True, times=-1)
                self.going_on.remove(freed)
                self.paused.append(freed)
        if self.paused:
            return
        for request in self.were_paused:
            limit = self.lacking(request)
            alone = not self.decodes() and not self.reading
            if limit and not (limit == "working_sets" and alone):
                self.not_resumed = limit
                break
            self.take(request, elastic=True)
            self.resumed.append(request)

    # prompts
    def is_short(self, request):
        return request.prompt <= self.s.knobs["short_tokens"]

    def segments_of(self, short):
        return sum(1 for segment in self.segments if self.is_short(segment.request) == short)

    def next_segment(self, request, most, force):
        s, layer, token, ms = self.s, request.layer, request.token, 0.0
        if s.chunks:
            end = min(token + s.knobs["chunk_tokens"], request.prompt)
            ms = s.layers * s.layer_ms(token, end)
            return None if ms > most + SLACK and not force else Segment(request, 0, end, ms, end == request.prompt)
        whole = s.layer_ms(0, request.prompt)
        if s.knobs["token_layers"] > 0:
            end = min(layer + max(1, s.knobs["token_layers"] // request.prompt), s.layers)
            return Segment(request, end, 0, (end - layer) * whole, end == s.layers)
        while layer < s.layers:
            rest = s.layer_ms(token, request.prompt)
            if ms + rest <= most + SLACK:
                layer, token, ms = layer + 1, 0, ms + rest
                continue
            started = (layer, token) != (request.layer, request.token)
            if started and token == 0:
                break  # a layer is cut only where the segment has no other
            if not s.cuts_layers:
                if force and not started:
                    layer, token, ms = layer + 1, 0, ms + rest
                break
            end = min(token + s.piece, request.prompt)
            piece = s.layer_ms(token, end)
            if ms + piece > most + SLACK and not (force and not started):
                break
            layer, token, ms = (layer, end, ms + piece) if end < request.prompt else (layer + 1, 0, ms + piece)
        if (layer, token) == (request.layer, request.token):
            return None
        return Segment(request, layer, token, ms, layer == s.layers)

    def read(self, request, most, force):
        """Adds the next part of a prompt. Returns what kept it out."""
        if self.segments and self.tokens + request.prompt > self.s.knobs["iteration_tokens"]:
            return "token_budget"
        segment = self.next_segment(request, most, force)
        if segment is None:
            return "time_budget"
        if self.s.chunks and self.s.offload:  # the keys and values of all chunks so far are on the device
            held = segment.token * self.s.layers * self.s.layer_token_bytes()
            hard, more = max(0, held - request.hard), max(0, held - request.working_set)
            limit = self.lacking(request, hard=hard, working_set=more)
            if limit and (self.decodes() or self.segments):
                return limit
            if limit:
                self.closed = True
                self.used["hard"] = self.used["working_sets"] = held
            else:
                self.used["hard"] += hard
                self.used["working_sets"] += more
        self.left -= segment.ms
        self.ms += segment.ms
        self.tokens += request.prompt
        self.segments.append(segment)
        return None

    def rest_ms(self, request):
        if self.s.chunks:
            return self.s.layers * self.s.layer_ms(request.token, request.prompt)
        whole = self.s.layer_ms(0, request.prompt)
        return (self.s.layers - request.layer) * whole - self.s.layer_ms(0, request.token)

    def lane_full(self, short):
        return self.segments_of(True) >= self.s.knobs["short_turns"] if short else self.segments_of(False) > 0

    def read_prompts(self):
        longs = [request for request in self.reading if not self.is_short(request)]
        shorts = [request for request in self.reading if self.is_short(request)]
        aged = longs and (self.now - longs[0].last_segment) / 1e6 >= self.s.knobs["aging_ms"]
        wanted = sum(self.rest_ms(request) for request in shorts[:self.s.knobs["short_turns"]])
        kept = 0 if aged else min(wanted, max(0.0, self.left) / 2)
        for request in longs + shorts:
            short = self.is_short(request)
            if self.closed or self.lane_full(short):
                continue
            nothing_else = not self.decodes() and not self.segments
            waited = (self.now - request.last_segment) / 1e6 >= self.s.knobs["max_suspend_ms"]
            force = (nothing_else or waited) and not (short and self.segments_of(True) > 0)
            limit = self.read(request, self.left if short else self.left - kept, force)
            if limit in ("working_sets", "hard_need"):
                self.holder = limit
            self.prompt = self.prompt or limit

    # admissions
    def admit(self):
        if self.paused or len(self.resumed) < len(self.were_paused):
            self.queue = "paused_first" if self.waiting else None
            return
        if self.holder or self.closed:
            self.queue = "holders_first" if self.waiting else None
            return
        knobs = self.s.knobs
        largest = max((self.alone(request) for request in self.running + self.were_paused), default=0)
        reading = {short: sum(self.is_short(request) == short for request in self.reading) for short in (False, True)}
        places = {False: knobs["long_prefills"], True: knobs["short_turns"]}
        lane_open = True
        for request in self.waiting:
            short = self.is_short(request)
            limit = self.lacking(request, fixed=True)
            if limit == "working_sets" and not self.running and not self.were_paused and not self.admitted:
                limit = None  # a request that runs alone may exceed what there is
            if not limit and reading[short] >= places[short]:
                limit = "prefill_lane"
            if not limit and self.used["device"] + request.device + max(largest,
                                                                        self.alone(request)) > self.s.device:
                limit = "device_memory"
            if short and not lane_open:
                limit = "barrier"
            if not limit:
                self.take(request, fixed=True, elastic=True, scratch=True)
                self.admitted.append(request)
                largest = max(largest, self.alone(request))
                reading[short] += 1
                ms = self.s.admission_ms(request.prompt)
                self.left -= ms
                self.ms += ms
                continue
            self.queue = self.queue or limit
            no_short = knobs["short_tokens"] == 0 or reading[True] >= places[True]
            if limit == "rows" or (reading[False] >= places[False] and no_short):
                break
            waited = (self.now - request.arrival) / 1e6
            if request.skips >= knobs["max_skips"] or waited > request.ttft_bound_ms:
                break
            if not short and limit != "prefill_lane" and waited >= knobs["aging_ms"]:
                lane_open = False

    def read_admitted(self):
        for request in sorted(self.admitted, key=self.is_short):
            if self.lane_full(self.is_short(request)):
                continue
            limit = self.read(request, self.left, not self.decodes() and not self.segments)
            self.prompt = self.prompt or limit

    def limited_by(self):
        if self.paused:
            return "working_sets"
        cut = "time_budget" if any(not segment.last for segment in self.segments) else "none"
        return self.not_resumed or self.holder or self.queue or self.prompt or cut
