-- The .kvtrace format, version 1; docs/trace-format.md explains every table, column and unit.
-- Whoever writes a trace executes this file in an empty database after
--   PRAGMA page_size=16384;  PRAGMA application_id=0x4B565343;  PRAGMA user_version=1;
--
-- Tables hold one packed integer key per row (the cost of recording is per row and per index, not per byte):
--   step        = run << 25 | step                          run 1..255, step 0..2^25-1
--   layer_step  = (step key) << 10 | layer                  layer 0..1023
--   selection   = (layer_step key) << 20 | seq << 10 | head sequence and KV head 0..1023
--   token       = (step key) << 20 | seq << 10 | index      index counts the tokens of one sequence in one step
--   prompt_piece = as a token, with index 0
--   prompt      = run << 55 | seq << 45 | position          position 0..2^45-1
--   iteration   = run << 25 | iteration                     as a step; member = (iteration key) << 10 | row
--   request     = run << 40 | number                        likewise request_span and row_event
-- The views unpack them. Times are integers in nanoseconds, relative to the start of the run.

CREATE TABLE run (
    run_id          INTEGER PRIMARY KEY,      -- 1..255
    name            TEXT NOT NULL,
    created_utc     TEXT NOT NULL,            -- ISO 8601, e.g. 2026-01-31T12:00:00Z
    model           TEXT NOT NULL,
    method          TEXT NOT NULL,            -- registry id
    params_json     TEXT NOT NULL,            -- resolved parameters, one JSON object
    backend         TEXT NOT NULL,            -- cpu | cuda
    device          TEXT NOT NULL,
    link            TEXT NOT NULL,
    timing          TEXT NOT NULL,            -- transfer times are: measured | modelled
    link_gbps       REAL NOT NULL,            -- 1e9 bytes per second
    link_latency_us REAL NOT NULL,
    block_size      INTEGER NOT NULL,         -- tokens
    layers          INTEGER NOT NULL,
    kv_heads        INTEGER NOT NULL,
    query_heads     INTEGER NOT NULL,
    head_dim        INTEGER NOT NULL,
    sequences       INTEGER NOT NULL,
    device_slots    INTEGER NOT NULL,         -- block slots per (sequence, layer, KV head); 0: everything resident
    budget_blocks   INTEGER NOT NULL,         -- most blocks a KV head attends; 0: all
    block_bytes     INTEGER NOT NULL,         -- one block of one KV head as transferred
    level           TEXT NOT NULL,            -- counters | selections | full
    status          TEXT NOT NULL,            -- running | finished | stopped | failed
    status_message  TEXT NOT NULL DEFAULT ''
) STRICT;

-- What recording itself lost and cost, rewritten about once a second while the run is recorded.
CREATE TABLE health (
    run_id         INTEGER PRIMARY KEY,
    program        TEXT NOT NULL,             -- name and version of the writer
    dropped_steps  INTEGER NOT NULL,          -- steps that never reached the file
    writer_busy_ns INTEGER NOT NULL,          -- CPU time of the writer thread
    heartbeat_ms   INTEGER NOT NULL,          -- Unix time in ms of the last sign of life
    error          TEXT NOT NULL DEFAULT ''   -- first storage error; nothing was recorded after it
) STRICT;

CREATE TABLE prompt (
    id       INTEGER PRIMARY KEY,
    token_id INTEGER NOT NULL,
    text     TEXT NOT NULL,                   -- valid UTF-8, malformed bytes replaced by U+FFFD
    bytes    BLOB                             -- raw bytes where they differ from text, else NULL
) STRICT;

CREATE TABLE step (
    id          INTEGER PRIMARY KEY,
    phase       INTEGER NOT NULL,             -- 0 prefill, 1 decode
    tokens      INTEGER NOT NULL,             -- fed in this step, all sequences
    opens_block INTEGER NOT NULL,             -- 1: some sequence began a new KV block
    start_ns    INTEGER NOT NULL,
    duration_ns INTEGER NOT NULL,             -- wall
    embed_ns    INTEGER NOT NULL,             -- stages outside the layers
    lm_head_ns  INTEGER NOT NULL,
    sample_ns   INTEGER NOT NULL,
    selected    INTEGER NOT NULL,             -- from here on: sums over the layers
    kept        INTEGER,                      -- NULL where undefined
    hits        INTEGER NOT NULL,
    misses      INTEGER NOT NULL,
    h2d_blocks  INTEGER NOT NULL,
    d2h_blocks  INTEGER NOT NULL,
    h2d_bytes   INTEGER NOT NULL,
    d2h_bytes   INTEGER NOT NULL,
    transfer_ns INTEGER NOT NULL,             -- link busy
    exposed_ns  INTEGER NOT NULL              -- of that, on the critical path
) STRICT;

CREATE TABLE layer_step (
    id             INTEGER PRIMARY KEY,
    start_ns       INTEGER NOT NULL,
    qkv_linear_ns  INTEGER NOT NULL,          -- stages in execution order, each begins where the one before it ends
    rope_ns        INTEGER NOT NULL,
    compression_ns INTEGER NOT NULL,
    stage1_ns      INTEGER NOT NULL,
    pooling_ns     INTEGER NOT NULL,
    offloading_ns  INTEGER NOT NULL,
    stage2_ns      INTEGER NOT NULL,
    attention_ns   INTEGER NOT NULL,          -- dense path, in place of stage1..stage2
    o_linear_ns    INTEGER NOT NULL,
    ffn_ns         INTEGER NOT NULL,
    selected       INTEGER NOT NULL,          -- sums over (sequence, KV head)
    kept           INTEGER,                   -- NULL where undefined
    hits           INTEGER NOT NULL,
    misses         INTEGER NOT NULL,
    h2d_blocks     INTEGER NOT NULL,
    d2h_blocks     INTEGER NOT NULL,
    h2d_bytes      INTEGER NOT NULL,
    d2h_bytes      INTEGER NOT NULL,
    h2d_ns         INTEGER NOT NULL,          -- link busy, host to device
    d2h_ns         INTEGER NOT NULL,          -- link busy, device to host
    exposed_ns     INTEGER NOT NULL,          -- of both, on the critical path
    mass           REAL                       -- mean attention mass captured, 0..1; NULL without the oracle
) STRICT;

CREATE TABLE selection (
    id          INTEGER PRIMARY KEY,
    opens_block INTEGER NOT NULL,             -- 1: this sequence began a new KV block in this step
    selected    INTEGER NOT NULL,
    kept        INTEGER,                      -- |S(t) and S(t-1)|; NULL: first selection of a sequence
    hits        INTEGER NOT NULL,
    misses      INTEGER NOT NULL,
    mass        REAL,                         -- attention mass captured, 0..1; NULL without the oracle
    blocks      BLOB                          -- ids, origins, hits, scores; NULL at level counters
) STRICT;

-- Of schedules that ask for blocks before the attention that needs them; the id is the selection's.
CREATE TABLE lookahead (
    id        INTEGER PRIMARY KEY,
    predicted INTEGER NOT NULL,               -- blocks asked for
    used      INTEGER NOT NULL,               -- of those, selected in the end
    wasted    INTEGER NOT NULL,               -- of those, transferred and not selected
    late      INTEGER NOT NULL,               -- of those, still on their way when the attention needed them
    stale     INTEGER                         -- blocks this query wanted that a lagging method could not give; NULL: no lag
) STRICT;

-- What the exact attention would have chosen, with the oracle; the id is the selection's. Best: the blocks of the most
-- mass, as many as were selected. Far: without sink and window, shares of the other blocks' mass.
CREATE TABLE oracle (
    id            INTEGER PRIMARY KEY,
    best_mass     REAL NOT NULL,              -- attention mass of the best blocks, 0..1
    recall        REAL NOT NULL,              -- share of the best blocks that were selected, 0..1
    far_mass      REAL,                       -- NULL where nothing is far or none was chosen
    far_best_mass REAL,
    far_recall    REAL
) STRICT;

CREATE TABLE token (                          -- generated tokens
    id       INTEGER PRIMARY KEY,
    position INTEGER NOT NULL,                -- in the sequence, prompt included
    token_id INTEGER NOT NULL,
    text     TEXT NOT NULL,
    bytes    BLOB
) STRICT;

-- Where prompts are read in several steps, or beside decoding sequences: what a step read of whose prompt. A step with phase 0
-- reads prompts only, one with phase 1 and rows here decodes as well. Runs that read all their prompts in step 0 have no rows
-- here, and traces of before may lack the table. The id is a token's, with index 0.
CREATE TABLE prompt_piece (
    id     INTEGER PRIMARY KEY,
    begins INTEGER NOT NULL,                  -- 1: the first piece of a prompt; what the sequence had before is over
    first  INTEGER NOT NULL,                  -- position of its first token; those before it came from a cache, or earlier
    tokens INTEGER NOT NULL
) STRICT;

-- Spans of other sources (kernels, copies, ranges of another engine); tracks and names are interned in `text`.
CREATE TABLE text (
    id    INTEGER PRIMARY KEY,
    value TEXT NOT NULL UNIQUE
) STRICT;

CREATE TABLE span (
    id          INTEGER PRIMARY KEY,
    run_id      INTEGER NOT NULL,
    step        INTEGER NOT NULL,             -- -1: none
    layer       INTEGER NOT NULL,             -- -1: none
    kind        INTEGER NOT NULL,             -- 0 range, 1 kernel, 2 copy
    track       INTEGER NOT NULL REFERENCES text(id),
    name        INTEGER NOT NULL REFERENCES text(id),
    start_ns    INTEGER NOT NULL,
    duration_ns INTEGER NOT NULL,
    depth       INTEGER NOT NULL,
    stage       INTEGER REFERENCES text(id),  -- a kernel was launched for; NULL: none, or in the name (older traces)
    bytes       INTEGER                       -- moved or set; NULL: not known, or in the name
) STRICT;

-- What something was counted in an interval, e.g. bytes that the GPU's own counters saw on its PCIe link.
CREATE TABLE counter (
    id          INTEGER PRIMARY KEY,
    run_id      INTEGER NOT NULL,
    track       INTEGER NOT NULL REFERENCES text(id),
    start_ns    INTEGER NOT NULL,
    duration_ns INTEGER NOT NULL,
    value       INTEGER NOT NULL              -- counted within the interval
) STRICT;

-- What a person wrote on the time of a run; the desktop adds these, nobody needs them. Traces of before may lack the table.
CREATE TABLE note (
    id          INTEGER PRIMARY KEY,
    run_id      INTEGER NOT NULL,
    start_ns    INTEGER NOT NULL,             -- on the run's clock
    duration_ns INTEGER NOT NULL,             -- 0: a moment
    text        TEXT NOT NULL,                -- '': a bookmark
    created_utc TEXT NOT NULL
) STRICT;

-- What another tool said of a span beside its name and time; only spans it said something of have a row. Older traces do
-- not have this table, nor those below.
CREATE TABLE span_detail (
    id       INTEGER PRIMARY KEY REFERENCES span(id),
    category INTEGER REFERENCES text(id),     -- NULL: none
    args     TEXT                             -- one JSON object; NULL: none
) STRICT;

-- Values that other engines and tools recorded; KVScope's own recorder leaves this table empty.
CREATE TABLE gauge (
    id      INTEGER PRIMARY KEY,
    run_id  INTEGER NOT NULL,
    track   INTEGER NOT NULL REFERENCES text(id),
    time_ns INTEGER NOT NULL,
    value   REAL NOT NULL                     -- from then until the track's next one
) STRICT;

-- What led to what: a launch to its kernel.
CREATE TABLE flow (
    id        INTEGER PRIMARY KEY,
    run_id    INTEGER NOT NULL,
    from_span INTEGER NOT NULL REFERENCES span(id),
    to_span   INTEGER NOT NULL REFERENCES span(id)
) STRICT;

-- Readings of other clocks beside the run's own, so that runs of several processes can be put on one clock. KVScope's own
-- recorder leaves this table empty; traces of before may lack it.
CREATE TABLE clock_sync (
    id           INTEGER PRIMARY KEY,
    run_id       INTEGER NOT NULL,
    clock        INTEGER NOT NULL REFERENCES text(id), -- clocks of one name are one clock
    own_ns       INTEGER NOT NULL,            -- on the run's clock
    reference_ns INTEGER NOT NULL,            -- what the other clock showed then
    error_ns     INTEGER NOT NULL             -- by how much the two moments may be apart
) STRICT;

-- More about a run, one key a row. Key `knows` says what its writer could see: where it names no hits, a 0 in their columns
-- means "not known". docs/trace-format.md lists the keys. Older traces do not have this table.
CREATE TABLE run_meta (
    run_id INTEGER NOT NULL,
    key    TEXT NOT NULL,
    value  TEXT NOT NULL,
    PRIMARY KEY (run_id, key)
) STRICT, WITHOUT ROWID;

-- What block-diffusion runs did in each step: one denoising forward of every sequence that is not finished. The id is a
-- token's with index 0. Traces of before, and those of runs that decode token by token, may lack these three tables.
CREATE TABLE denoise (
    id           INTEGER PRIMARY KEY,
    block        INTEGER NOT NULL,            -- number of the block in the sequence
    denoise_step INTEGER NOT NULL,            -- forwards of the block before this one
    kind         INTEGER NOT NULL,            -- 0 denoise, 1 final: the clean forward, whose keys and values are kept
    masked       INTEGER NOT NULL,            -- positions that the forward read as masks
    written      INTEGER NOT NULL             -- of those, written after it
) STRICT;

CREATE TABLE denoise_token (                  -- the id is a token's, its index the place in the block
    id         INTEGER PRIMARY KEY,
    position   INTEGER NOT NULL,              -- in the sequence, prompt included
    input_id   INTEGER NOT NULL,              -- what the forward read there
    candidate  INTEGER,                       -- token it would write there; NULL: nothing was masked
    confidence REAL,                          -- its probability, 0..1; NULL likewise
    written    INTEGER NOT NULL               -- 1: the candidate was written
) STRICT;

CREATE TABLE denoise_layer (                  -- the id is a selection's
    id         INTEGER PRIMARY KEY,
    mode       INTEGER NOT NULL,              -- 0 dense: every token attended to the whole prefix; 1 sparse
    active     INTEGER,                       -- tokens of the block that attended to the prefix anew; NULL where dense
    active_set INTEGER,                       -- the same as 64 bits, bit i: token i
    pages      INTEGER,                       -- united pages of these tokens; NULL where dense
    density    REAL,                          -- tokens of these pages / prefix, 0..1; NULL where dense
    changes    BLOB                           -- of each token's queries since the forward before; NULL: none, or KV head 0's
) STRICT;

-- Where every query head chose pages of its own for each row of tiles of the block (SparseD): the selection of the KV head is
-- their union. The id is a selection's. Traces of before may lack this table.
CREATE TABLE denoise_tile (
    id        INTEGER PRIMARY KEY,
    densities TEXT NOT NULL                   -- JSON: tokens / prefix, [[row 0, row 1], ...] for each query head of the group
) STRICT;

-- How much the keys and values of a block's tokens changed since the forward before, where a run of full attention records
-- them. The id is a selection's, of KV head 0: the numbers are of all KV heads together. Traces of before may lack this table.
CREATE TABLE denoise_change (
    id            INTEGER PRIMARY KEY,
    key_changes   BLOB NOT NULL,              -- float32, one a token
    value_changes BLOB NOT NULL               -- likewise
) STRICT;

-- What a serving run did: requests that come and go, and the iterations that serve them. Other runs have no rows here, and
-- traces of before may lack these tables. Another engine may write requests and their spans alone. Times are on the run's
-- clock. A step of a serving run of KVScope is the decode step of the
-- iteration with its number, and a sequence of its selections is a row, which one request after another has.
CREATE TABLE request (
    id             INTEGER PRIMARY KEY,       -- number: in the order of arrival
    row            INTEGER,                   -- place in the batch; NULL: it never had one
    class          TEXT NOT NULL,             -- of the workload; '': none
    arrival_ns     INTEGER NOT NULL,          -- when it was meant to arrive: every latency begins here
    first_sched_ns INTEGER,                   -- the first iteration that works for it begins
    first_token_ns INTEGER,
    end_ns         INTEGER,                   -- NULL: it has not ended
    prompt_tokens  INTEGER NOT NULL,
    max_tokens     INTEGER NOT NULL,
    output_tokens  INTEGER NOT NULL,
    status         TEXT NOT NULL,             -- queued | prefill | decode | paused | length | stop | cancelled | refused | failed
    reason         TEXT NOT NULL,             -- why it was refused or failed, or who cancelled it
    paused_ns      INTEGER NOT NULL,
    pauses         INTEGER NOT NULL,
    hits           INTEGER NOT NULL,          -- of its decode steps' selections
    misses         INTEGER NOT NULL,
    h2d_bytes      INTEGER NOT NULL,
    host_bytes     INTEGER NOT NULL,          -- reserved while it is admitted
    device_bytes   INTEGER NOT NULL,
    slo_ttft_ms    REAL NOT NULL,             -- its bounds
    slo_tbt_ms     REAL NOT NULL,
    external_id    TEXT,                      -- of another engine: its own name of the request; NULL: none, as in older traces
    first_step     INTEGER,                   -- between which it had its row, where another engine says so; NULL: see row_event
    last_step      INTEGER
) STRICT;

CREATE TABLE request_span (                   -- gapless from a request's arrival to its end
    id              INTEGER PRIMARY KEY,      -- number: in the order in which spans ended
    request         INTEGER NOT NULL,         -- number of the request
    state           TEXT NOT NULL,            -- queued | prefill | decode | paused
    start_ns        INTEGER NOT NULL,
    end_ns          INTEGER NOT NULL,
    first_iteration INTEGER,                  -- that worked for it; NULL: none did
    last_iteration  INTEGER
) STRICT;

CREATE TABLE iteration (
    id               INTEGER PRIMARY KEY,
    start_ns         INTEGER NOT NULL,
    duration_ns      INTEGER NOT NULL,
    decode_ns        INTEGER NOT NULL,        -- of the duration
    prefill_ns       INTEGER NOT NULL,        -- likewise
    predicted_ns     INTEGER NOT NULL,        -- by the plan
    decode_rows      INTEGER NOT NULL,
    prefill_requests INTEGER NOT NULL,
    prefill_tokens   INTEGER NOT NULL,
    waiting          INTEGER NOT NULL,        -- requests, behind the plan
    paused           INTEGER NOT NULL,
    admitted         INTEGER NOT NULL,        -- by the plan
    refused          INTEGER NOT NULL,
    ws_bytes         INTEGER NOT NULL,        -- sum of working sets
    mavl_bytes       INTEGER NOT NULL,        -- what there is for them (M_avl)
    hard_bytes       INTEGER NOT NULL,        -- one layer's selections at once
    device_bytes     INTEGER NOT NULL,        -- reserved: index, newest blocks
    scratch_bytes    INTEGER NOT NULL,        -- reserved: prompts that are being read
    host_bytes       INTEGER NOT NULL,        -- reserved: the host store
    surprises        INTEGER NOT NULL,        -- selected blocks outside of the working sets; one pool for all rows
    limited_by       TEXT NOT NULL            -- what bound the plan; none: nothing waits
) STRICT;

CREATE TABLE member (                         -- what an iteration did for a request
    id         INTEGER PRIMARY KEY,
    request    INTEGER NOT NULL,              -- number
    kind       INTEGER NOT NULL,              -- 0 decode, 1 prefill
    tokens     INTEGER NOT NULL,              -- of the prompt; decode: 1
    layer_from INTEGER NOT NULL,              -- prefill: layers [from, to) were read, and what is begun of `to`
    layer_to   INTEGER NOT NULL,
    hits       INTEGER NOT NULL,
    misses     INTEGER NOT NULL,
    h2d_bytes  INTEGER NOT NULL,
    ws_bytes   INTEGER NOT NULL,              -- its working set behind the iteration
    token_ns   INTEGER                        -- when its token was there; NULL: none was made
) STRICT;

CREATE TABLE row_event (                      -- who has which row of the batch
    id        INTEGER PRIMARY KEY,            -- number: in the order of events
    iteration INTEGER NOT NULL,               -- the first one that it holds for; behind the last one where none followed
    row       INTEGER NOT NULL,
    request   INTEGER NOT NULL,               -- number of the request
    kind      TEXT NOT NULL,                  -- admitted | paused | resumed | released
    time_ns   INTEGER NOT NULL
) STRICT;

-- Views. The joins go from a run's key range to the rows below it, so a filter on run_id reads that run only.

CREATE VIEW runs AS
SELECT r.run_id, r.name, r.created_utc, r.model, r.method, r.params_json, r.backend, r.device, r.link, r.block_size,
       r.layers, r.kv_heads, r.status,
       r.status_message, r.timing, r.link_gbps, r.link_latency_us, r.query_heads, r.head_dim, r.sequences, r.device_slots,
       r.budget_blocks, r.block_bytes, r.level,
       coalesce((SELECT max(s.id) & 0x1FFFFFF FROM step s
                 WHERE s.id BETWEEN r.run_id << 25 AND (r.run_id << 25) | 0x1FFFFFF) + 1, 0) AS steps,
       h.program, coalesce(h.dropped_steps, 0) AS dropped_steps, coalesce(h.writer_busy_ns, 0) AS writer_busy_ns,
       h.heartbeat_ms, coalesce(h.error, '') AS error
FROM run r LEFT JOIN health h ON h.run_id = r.run_id;

CREATE VIEW v_step AS
SELECT r.run_id, s.id & 0x1FFFFFF AS step, CASE s.phase WHEN 0 THEN 'prefill' ELSE 'decode' END AS phase, s.tokens,
       s.start_ns, s.duration_ns, s.selected, s.hits, s.misses, s.h2d_bytes, s.d2h_bytes, s.transfer_ns, s.exposed_ns,
       s.kept, s.opens_block, s.h2d_blocks, s.d2h_blocks, s.embed_ns, s.lm_head_ns, s.sample_ns
FROM run r CROSS JOIN step s ON s.id BETWEEN r.run_id << 25 AND (r.run_id << 25) | 0x1FFFFFF;

CREATE VIEW v_layer AS
SELECT r.run_id, s.id & 0x1FFFFFF AS step, l.id & 0x3FF AS layer,
       CASE s.phase WHEN 0 THEN 'prefill' ELSE 'decode' END AS phase, l.start_ns,
       l.qkv_linear_ns + l.rope_ns + l.compression_ns + l.stage1_ns + l.pooling_ns + l.offloading_ns + l.stage2_ns +
           l.attention_ns + l.o_linear_ns + l.ffn_ns AS duration_ns,
       l.qkv_linear_ns, l.rope_ns, l.compression_ns, l.stage1_ns, l.pooling_ns, l.offloading_ns, l.stage2_ns,
       l.attention_ns, l.o_linear_ns, l.ffn_ns,
       l.selected, l.kept, l.hits, l.misses, l.h2d_blocks, l.d2h_blocks, l.h2d_bytes, l.d2h_bytes, l.h2d_ns, l.d2h_ns,
       l.exposed_ns, l.mass, s.opens_block, r.timing
FROM run r CROSS JOIN step s ON s.id BETWEEN r.run_id << 25 AND (r.run_id << 25) | 0x1FFFFFF
           CROSS JOIN layer_step l ON l.id BETWEEN s.id << 10 AND (s.id << 10) | 0x3FF;

CREATE VIEW v_locality AS
SELECT r.run_id, s.id & 0x1FFFFFF AS step, (c.id >> 20) & 0x3FF AS layer, (c.id >> 10) & 0x3FF AS seq,
       c.id & 0x3FF AS kv_head, c.selected, c.kept, CAST(c.kept AS REAL) / nullif(c.selected, 0) AS locality,
       c.opens_block, c.hits, c.misses, c.mass
FROM run r CROSS JOIN step s ON s.id BETWEEN r.run_id << 25 AND (r.run_id << 25) | 0x1FFFFFF
           CROSS JOIN selection c ON c.id BETWEEN s.id << 30 AND (s.id << 30) | 0x3FFFFFFF;

CREATE VIEW v_lookahead AS
SELECT r.run_id, s.id & 0x1FFFFFF AS step, (a.id >> 20) & 0x3FF AS layer, (a.id >> 10) & 0x3FF AS seq,
       a.id & 0x3FF AS kv_head, a.predicted, a.used, a.wasted, a.late, a.stale
FROM run r CROSS JOIN step s ON s.id BETWEEN r.run_id << 25 AND (r.run_id << 25) | 0x1FFFFFF
           CROSS JOIN lookahead a ON a.id BETWEEN s.id << 30 AND (s.id << 30) | 0x3FFFFFFF;

CREATE VIEW v_oracle AS
SELECT r.run_id, s.id & 0x1FFFFFF AS step, (c.id >> 20) & 0x3FF AS layer, (c.id >> 10) & 0x3FF AS seq,
       c.id & 0x3FF AS kv_head, c.mass, o.best_mass, o.recall, o.far_mass, o.far_best_mass, o.far_recall
FROM run r CROSS JOIN step s ON s.id BETWEEN r.run_id << 25 AND (r.run_id << 25) | 0x1FFFFFF
           CROSS JOIN oracle o ON o.id BETWEEN s.id << 30 AND (s.id << 30) | 0x3FFFFFFF
           CROSS JOIN selection c ON c.id = o.id;

CREATE VIEW v_denoise AS
SELECT r.run_id, (d.id >> 20) & 0x1FFFFFF AS step, (d.id >> 10) & 0x3FF AS seq, d.block, d.denoise_step,
       CASE d.kind WHEN 1 THEN 'final' ELSE 'denoise' END AS kind, d.masked, d.written
FROM run r CROSS JOIN denoise d ON d.id BETWEEN r.run_id << 45 AND (r.run_id << 45) | 0x1FFFFFFFFFFF;

CREATE VIEW v_denoise_token AS
SELECT r.run_id, (t.id >> 20) & 0x1FFFFFF AS step, (t.id >> 10) & 0x3FF AS seq, t.position,
       coalesce(t.candidate, t.input_id) AS token_id, t.confidence, t.written, t.input_id
FROM run r CROSS JOIN denoise_token t ON t.id BETWEEN r.run_id << 45 AND (r.run_id << 45) | 0x1FFFFFFFFFFF;

CREATE VIEW v_denoise_layer AS
SELECT r.run_id, (l.id >> 30) & 0x1FFFFFF AS step, (l.id >> 20) & 0x3FF AS layer, (l.id >> 10) & 0x3FF AS seq,
       l.id & 0x3FF AS kv_head, CASE l.mode WHEN 1 THEN 'sparse' ELSE 'dense' END AS mode, l.active, l.pages, l.density,
       l.active_set, l.changes
FROM run r CROSS JOIN denoise_layer l ON l.id BETWEEN r.run_id << 55 AND (r.run_id << 55) | 0x7FFFFFFFFFFFFF;

CREATE VIEW v_denoise_tile AS
SELECT r.run_id, (t.id >> 30) & 0x1FFFFFF AS step, (t.id >> 20) & 0x3FF AS layer, (t.id >> 10) & 0x3FF AS seq,
       t.id & 0x3FF AS kv_head, (t.id & 0x3FF) * (r.query_heads / r.kv_heads) + h.key AS query_head, w.key AS tile_row,
       w.value AS density
FROM run r CROSS JOIN denoise_tile t ON t.id BETWEEN r.run_id << 55 AND (r.run_id << 55) | 0x7FFFFFFFFFFFFF
           CROSS JOIN json_each(CASE WHEN json_valid(t.densities) THEN t.densities ELSE '[]' END) h
           CROSS JOIN json_each(CASE h.type WHEN 'array' THEN h.value ELSE '[]' END) w;

CREATE VIEW v_denoise_change AS
SELECT r.run_id, (c.id >> 30) & 0x1FFFFFF AS step, (c.id >> 20) & 0x3FF AS layer, (c.id >> 10) & 0x3FF AS seq,
       c.key_changes, c.value_changes
FROM run r CROSS JOIN denoise_change c ON c.id BETWEEN r.run_id << 55 AND (r.run_id << 55) | 0x7FFFFFFFFFFFFF;

CREATE VIEW v_request AS
SELECT r.run_id, q.id & 0xFFFFFFFFFF AS request, q.row, q.class, q.arrival_ns, q.first_sched_ns, q.first_token_ns, q.end_ns,
       q.first_sched_ns - q.arrival_ns AS queue_ns, q.first_token_ns - q.arrival_ns AS ttft_ns,
       q.prompt_tokens, q.max_tokens, q.output_tokens, q.status, q.reason, q.paused_ns, q.pauses, q.hits, q.misses,
       q.h2d_bytes, q.host_bytes, q.device_bytes, q.slo_ttft_ms, q.slo_tbt_ms, q.external_id, q.first_step, q.last_step
FROM run r CROSS JOIN request q ON q.id BETWEEN r.run_id << 40 AND (r.run_id << 40) | 0xFFFFFFFFFF;

CREATE VIEW v_request_span AS
SELECT r.run_id, s.request, s.state, s.start_ns, s.end_ns, s.first_iteration, s.last_iteration
FROM run r CROSS JOIN request_span s ON s.id BETWEEN r.run_id << 40 AND (r.run_id << 40) | 0xFFFFFFFFFF;

CREATE VIEW v_iteration AS
SELECT r.run_id, i.id & 0x1FFFFFF AS iteration, i.start_ns, i.duration_ns, i.decode_ns, i.prefill_ns, i.predicted_ns,
       i.decode_rows, i.prefill_requests, i.prefill_tokens, i.waiting, i.paused, i.admitted, i.refused, i.ws_bytes,
       i.mavl_bytes, i.hard_bytes, i.device_bytes, i.scratch_bytes, i.host_bytes, i.surprises, i.limited_by
FROM run r CROSS JOIN iteration i ON i.id BETWEEN r.run_id << 25 AND (r.run_id << 25) | 0x1FFFFFF;

CREATE VIEW v_member AS
SELECT r.run_id, (m.id >> 10) & 0x1FFFFFF AS iteration, m.id & 0x3FF AS row, m.request,
       CASE m.kind WHEN 1 THEN 'prefill' ELSE 'decode' END AS kind, m.tokens, m.layer_from, m.layer_to, m.hits, m.misses,
       m.h2d_bytes, m.ws_bytes, m.token_ns
FROM run r CROSS JOIN member m ON m.id BETWEEN r.run_id << 35 AND (r.run_id << 35) | 0x7FFFFFFFF;

CREATE VIEW v_row_event AS
SELECT r.run_id, e.id & 0xFFFFFFFFFF AS event, e.iteration, e.row, e.request, e.kind, e.time_ns
FROM run r CROSS JOIN row_event e ON e.id BETWEEN r.run_id << 40 AND (r.run_id << 40) | 0xFFFFFFFFFF;

CREATE VIEW v_served_selection AS
SELECT r.run_id, m.request, s.id & 0x1FFFFFF AS step, (c.id >> 20) & 0x3FF AS layer, (c.id >> 10) & 0x3FF AS row,
       c.id & 0x3FF AS kv_head, c.selected, c.kept, CAST(c.kept AS REAL) / nullif(c.selected, 0) AS locality,
       c.opens_block, c.hits, c.misses
FROM run r CROSS JOIN step s ON s.id BETWEEN r.run_id << 25 AND (r.run_id << 25) | 0x1FFFFFF
           CROSS JOIN selection c ON c.id BETWEEN s.id << 30 AND (s.id << 30) | 0x3FFFFFFF
           CROSS JOIN member m ON m.id = ((s.id << 10) | ((c.id >> 10) & 0x3FF));

-- `other` is the wall time of the steps minus everything named, so components and `other` add up exactly.
CREATE VIEW v_breakdown AS
SELECT run_id, phase, layer, component, calls, total_ns FROM (
    SELECT b.run_id, b.phase, b.layer, c.component,
           CASE c.i WHEN 0 THEN b.n0 WHEN 1 THEN b.n1 WHEN 2 THEN b.n2 WHEN 3 THEN b.n3 WHEN 4 THEN b.n4
                    WHEN 5 THEN b.n5 WHEN 6 THEN b.n6 WHEN 7 THEN b.n7 WHEN 8 THEN b.n8 ELSE b.n9 END AS calls,
           CASE c.i WHEN 0 THEN b.t0 WHEN 1 THEN b.t1 WHEN 2 THEN b.t2 WHEN 3 THEN b.t3 WHEN 4 THEN b.t4
                    WHEN 5 THEN b.t5 WHEN 6 THEN b.t6 WHEN 7 THEN b.t7 WHEN 8 THEN b.t8 ELSE b.t9 END AS total_ns
    FROM (SELECT run_id, phase, layer,
                 sum(qkv_linear_ns) AS t0, sum(rope_ns) AS t1, sum(compression_ns) AS t2, sum(stage1_ns) AS t3,
                 sum(pooling_ns) AS t4, sum(offloading_ns) AS t5, sum(stage2_ns) AS t6, sum(attention_ns) AS t7,
                 sum(o_linear_ns) AS t8, sum(ffn_ns) AS t9,
                 sum(qkv_linear_ns <> 0) AS n0, sum(rope_ns <> 0) AS n1, sum(compression_ns <> 0) AS n2,
                 sum(stage1_ns <> 0) AS n3, sum(pooling_ns <> 0) AS n4, sum(offloading_ns <> 0) AS n5,
                 sum(stage2_ns <> 0) AS n6, sum(attention_ns <> 0) AS n7, sum(o_linear_ns <> 0) AS n8,
                 sum(ffn_ns <> 0) AS n9
          FROM v_layer GROUP BY run_id, phase, layer) b
    CROSS JOIN (SELECT 0 AS i, 'qkv_linear' AS component UNION ALL SELECT 1, 'rope' UNION ALL SELECT 2, 'compression'
                UNION ALL SELECT 3, 'stage1' UNION ALL SELECT 4, 'pooling' UNION ALL SELECT 5, 'offloading'
                UNION ALL SELECT 6, 'stage2' UNION ALL SELECT 7, 'attention' UNION ALL SELECT 8, 'o_linear'
                UNION ALL SELECT 9, 'ffn') c)
WHERE calls > 0
UNION ALL
SELECT run_id, phase, -1, component, calls, total_ns FROM (
    SELECT b.run_id, b.phase, c.component,
           CASE c.i WHEN 0 THEN b.n0 WHEN 1 THEN b.n1 ELSE b.n2 END AS calls,
           CASE c.i WHEN 0 THEN b.t0 WHEN 1 THEN b.t1 ELSE b.t2 END AS total_ns
    FROM (SELECT run_id, phase, sum(embed_ns) AS t0, sum(lm_head_ns) AS t1, sum(sample_ns) AS t2,
                 sum(embed_ns <> 0) AS n0, sum(lm_head_ns <> 0) AS n1, sum(sample_ns <> 0) AS n2
          FROM v_step GROUP BY run_id, phase) b
    CROSS JOIN (SELECT 0 AS i, 'embed' AS component UNION ALL SELECT 1, 'lm_head' UNION ALL SELECT 2, 'sample') c)
WHERE calls > 0
UNION ALL
SELECT run_id, phase, -1, 'other', sum(calls), sum(ns) FROM (
    SELECT run_id, phase, 1 AS calls, duration_ns - embed_ns - lm_head_ns - sample_ns AS ns FROM v_step
    UNION ALL
    SELECT run_id, phase, 0, -duration_ns FROM v_layer)
GROUP BY run_id, phase;

-- Transfers begin with the layer's offloading stage. The duration is link time: measured or modelled as `runs.timing` says.
CREATE VIEW v_transfer AS
SELECT run_id, step, layer, 'h2d' AS direction, 'block copy, ' || timing || ' link' AS mechanism, h2d_blocks AS blocks,
       h2d_bytes AS bytes,
       start_ns + qkv_linear_ns + rope_ns + compression_ns + stage1_ns + pooling_ns AS start_ns, h2d_ns AS duration_ns
FROM v_layer WHERE h2d_blocks > 0 OR h2d_bytes > 0
UNION ALL
SELECT run_id, step, layer, 'd2h', 'block copy, ' || timing || ' link', d2h_blocks, d2h_bytes,
       start_ns + qkv_linear_ns + rope_ns + compression_ns + stage1_ns + pooling_ns, d2h_ns
FROM v_layer WHERE d2h_blocks > 0 OR d2h_bytes > 0;

CREATE VIEW v_token AS
SELECT r.run_id, (t.id >> 20) & 0x1FFFFFF AS step, (t.id >> 10) & 0x3FF AS seq, t.token_id, t.text, t.position,
       coalesce(t.bytes, CAST(t.text AS BLOB)) AS bytes
FROM run r CROSS JOIN token t ON t.id BETWEEN r.run_id << 45 AND (r.run_id << 45) | 0x1FFFFFFFFFFF;

CREATE VIEW v_prompt AS
SELECT r.run_id, (p.id >> 45) & 0x3FF AS seq, p.id & 0x1FFFFFFFFFFF AS position, p.token_id, p.text,
       coalesce(p.bytes, CAST(p.text AS BLOB)) AS bytes
FROM run r CROSS JOIN prompt p ON p.id BETWEEN r.run_id << 55 AND (r.run_id << 55) | 0x7FFFFFFFFFFFFF;

-- `mixed`: some sequences read their prompts, others decode.
CREATE VIEW v_step_kind AS
SELECT run_id, step, CASE WHEN phase = 0 THEN 'prompt' WHEN pieces > 0 THEN 'mixed' ELSE 'decode' END AS kind,
       CASE WHEN phase = 0 THEN tokens ELSE pieces END AS prompt_tokens,
       CASE WHEN phase = 0 THEN 0 ELSE tokens - pieces END AS decode_tokens
FROM (SELECT r.run_id, s.id & 0x1FFFFFF AS step, s.phase, s.tokens,
             (SELECT CAST(total(p.tokens) AS INTEGER) FROM prompt_piece p
              WHERE p.id BETWEEN s.id << 20 AND (s.id << 20) | 0xFFFFF) AS pieces
      FROM run r CROSS JOIN step s ON s.id BETWEEN r.run_id << 25 AND (r.run_id << 25) | 0x1FFFFFF);

CREATE VIEW v_prompt_piece AS
SELECT r.run_id, (p.id >> 20) & 0x1FFFFFF AS step, (p.id >> 10) & 0x3FF AS seq, p.begins, p.first, p.tokens
FROM run r CROSS JOIN prompt_piece p ON p.id BETWEEN r.run_id << 45 AND (r.run_id << 45) | 0x1FFFFFFFFFFF;

CREATE VIEW v_counter AS
SELECT c.run_id, t.value AS track, c.start_ns, c.duration_ns, c.value FROM counter c JOIN text t ON t.id = c.track;

CREATE VIEW v_clock_sync AS
SELECT c.run_id, t.value AS clock, c.own_ns, c.reference_ns, c.error_ns FROM clock_sync c JOIN text t ON t.id = c.clock;

-- Steps at depth 0, layers and the stages outside them at depth 1, stages of a layer at depth 2; then the spans of others.
CREATE VIEW v_span AS
SELECT run_id, step, -1 AS layer, 'host' AS track,
       CASE WHEN phase = 'decode' AND EXISTS (SELECT 1 FROM prompt_piece p WHERE p.id BETWEEN (run_id << 25 | step) << 20 AND
                                              ((run_id << 25 | step) << 20) | 0xFFFFF) THEN 'mixed' ELSE phase END AS name,
       start_ns, duration_ns, 0 AS depth, NULL AS category, NULL AS args FROM v_step
UNION ALL SELECT run_id, step, -1, 'host', 'embed', start_ns, embed_ns, 1, NULL, NULL FROM v_step WHERE embed_ns > 0
UNION ALL SELECT run_id, step, -1, 'host', 'lm_head', start_ns + duration_ns - sample_ns - lm_head_ns, lm_head_ns, 1, NULL, NULL
          FROM v_step WHERE lm_head_ns > 0
UNION ALL SELECT run_id, step, -1, 'host', 'sample', start_ns + duration_ns - sample_ns, sample_ns, 1, NULL, NULL
          FROM v_step WHERE sample_ns > 0
UNION ALL SELECT run_id, step, layer, 'host', 'layer', start_ns, duration_ns, 1, NULL, NULL FROM v_layer
UNION ALL SELECT run_id, step, layer, 'host', 'qkv_linear', start_ns, qkv_linear_ns, 2, NULL, NULL FROM v_layer
          WHERE qkv_linear_ns > 0
UNION ALL SELECT run_id, step, layer, 'host', 'rope', start_ns + qkv_linear_ns, rope_ns, 2, NULL, NULL FROM v_layer
          WHERE rope_ns > 0
UNION ALL SELECT run_id, step, layer, 'host', 'compression', start_ns + qkv_linear_ns + rope_ns, compression_ns, 2, NULL, NULL
          FROM v_layer WHERE compression_ns > 0
UNION ALL SELECT run_id, step, layer, 'host', 'stage1', start_ns + qkv_linear_ns + rope_ns + compression_ns, stage1_ns, 2, NULL, NULL
          FROM v_layer WHERE stage1_ns > 0
UNION ALL SELECT run_id, step, layer, 'host', 'pooling',
                 start_ns + qkv_linear_ns + rope_ns + compression_ns + stage1_ns, pooling_ns, 2, NULL, NULL
          FROM v_layer WHERE pooling_ns > 0
UNION ALL SELECT run_id, step, layer, 'host', 'offloading',
                 start_ns + qkv_linear_ns + rope_ns + compression_ns + stage1_ns + pooling_ns, offloading_ns, 2, NULL, NULL
          FROM v_layer WHERE offloading_ns > 0
UNION ALL SELECT run_id, step, layer, 'host', 'stage2',
                 start_ns + duration_ns - ffn_ns - o_linear_ns - attention_ns - stage2_ns, stage2_ns, 2, NULL, NULL
          FROM v_layer WHERE stage2_ns > 0
UNION ALL SELECT run_id, step, layer, 'host', 'attention',
                 start_ns + duration_ns - ffn_ns - o_linear_ns - attention_ns, attention_ns, 2, NULL, NULL
          FROM v_layer WHERE attention_ns > 0
UNION ALL SELECT run_id, step, layer, 'host', 'o_linear', start_ns + duration_ns - ffn_ns - o_linear_ns, o_linear_ns, 2, NULL, NULL
          FROM v_layer WHERE o_linear_ns > 0
UNION ALL SELECT run_id, step, layer, 'host', 'ffn', start_ns + duration_ns - ffn_ns, ffn_ns, 2, NULL, NULL FROM v_layer
          WHERE ffn_ns > 0
UNION ALL SELECT s.run_id, s.step, s.layer, t.value,
                 coalesce(g.value || ': ', '') || coalesce(s.bytes || ' bytes ', '') || n.value,
                 s.start_ns, s.duration_ns, s.depth, c.value, d.args
          FROM span s JOIN text t ON t.id = s.track JOIN text n ON n.id = s.name LEFT JOIN text g ON g.id = s.stage
          LEFT JOIN span_detail d ON d.id = s.id LEFT JOIN text c ON c.id = d.category;

CREATE VIEW v_kernel AS
SELECT s.run_id, s.step, s.layer, t.value AS track,
       coalesce(g.value || ': ', '') || coalesce(s.bytes || ' bytes ', '') || n.value AS name, s.start_ns, s.duration_ns
FROM span s JOIN text t ON t.id = s.track JOIN text n ON n.id = s.name LEFT JOIN text g ON g.id = s.stage
WHERE s.kind = 1;

CREATE VIEW v_gauge AS
SELECT c.run_id, t.value AS track, c.time_ns, c.value FROM gauge c JOIN text t ON t.id = c.track;

CREATE VIEW v_flow AS
SELECT f.run_id, ft.value AS from_track,
       coalesce(fg.value || ': ', '') || coalesce(a.bytes || ' bytes ', '') || fn.value AS from_name,
       a.start_ns AS from_start_ns, tt.value AS to_track,
       coalesce(tg.value || ': ', '') || coalesce(b.bytes || ' bytes ', '') || tn.value AS to_name,
       b.start_ns AS to_start_ns
FROM flow f JOIN span a ON a.id = f.from_span JOIN span b ON b.id = f.to_span
            JOIN text ft ON ft.id = a.track JOIN text fn ON fn.id = a.name LEFT JOIN text fg ON fg.id = a.stage
            JOIN text tt ON tt.id = b.track JOIN text tn ON tn.id = b.name LEFT JOIN text tg ON tg.id = b.stage;
