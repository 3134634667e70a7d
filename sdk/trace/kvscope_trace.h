/* Writes and reads KVScope traces (.kvtrace) from any engine. C99; includes no other header of KVScope.
 *
 * A writer owns one file. It records runs one after the other; a run has steps (the prefill, then decode steps), and a
 * step has what was selected, moved and timed in it. docs/recording.md shows all of it, docs/trace-format.md is the
 * format.
 *
 * Every function returns KVTRACE_OK or a negative status, and kvtrace_last_error() then says in one sentence what was
 * wrong with what, and how to mend it. No function throws, ends the program or prints. None waits for the disk, except
 * those marked W. All of them may be called from any thread; one step belongs to one thread at a time.
 *
 * Handles are numbers. One that was closed, or that a forked child inherited, is refused with a sentence, never
 * followed.
 *
 * Structs begin with `size`, which the caller sets to sizeof of the struct: fields are only ever added at the end, and
 * what an older caller does not have is taken as 0. Pointers are read during the call and not kept. */
#ifndef KVSCOPE_TRACE_H
#define KVSCOPE_TRACE_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define KVTRACE_API
#else
#define KVTRACE_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define KVTRACE_ABI_MAJOR 1
#define KVTRACE_ABI_MINOR 3

/* In place of a time: the library takes the time itself, when it is called. */
#define KVTRACE_NOW INT64_MIN

enum kvtrace_status {
    KVTRACE_OK = 0,
    KVTRACE_INVALID = -1,     /* an argument breaks a rule that the function states */
    KVTRACE_CLOSED = -2,      /* the handle was closed, committed, discarded or never given out */
    KVTRACE_FORKED = -3,      /* the handle belongs to the process that forked this one */
    KVTRACE_STORAGE = -4,     /* the file cannot be read or written, or is no trace */
    KVTRACE_UNSUPPORTED = -5, /* more than a trace can hold, or made for a newer library */
    KVTRACE_MEMORY = -6,
    KVTRACE_TIMEOUT = -7, /* the work goes on, but not within the time that was given */
    KVTRACE_STATE = -8    /* the call comes too early, twice or too late: the sentence says what comes first */
};

typedef uint64_t kvtrace_writer;
typedef uint64_t kvtrace_run;
typedef uint64_t kvtrace_step;
typedef uint64_t kvtrace_table;

/* major << 16 | minor of the library that is loaded. A program built for 1.2 runs with 1.5. */
KVTRACE_API int32_t kvtrace_abi(void);
/* "0.1.0". */
KVTRACE_API const char* kvtrace_version(void);
/* The sentence of the last call of this thread that failed; valid until the next one that fails. Never null. */
KVTRACE_API const char* kvtrace_last_error(void);

/* ---- Writing ---- */

enum kvtrace_level { KVTRACE_COUNTERS = 0, KVTRACE_SELECTIONS = 1, KVTRACE_FULL = 2 };
enum kvtrace_open_flags { KVTRACE_OVERWRITE = 1 };

typedef struct kvtrace_options {
    uint32_t size;
    int32_t level;        /* counters; selections: also block ids; full: also scores */
    uint64_t queue_bytes; /* steps that wait for the disk; beyond it whole steps are dropped and counted. 0: 256 MiB */
    uint32_t flags; /* KVTRACE_OVERWRITE: an existing trace is replaced. Without: a trace gets another run, and a file
                       that is no trace is refused */
    int32_t rank;   /* what %r in the path stands for; %p stands for the process, %% for %. Where the path has %r, or
                       the rank is above 0, runs get the keys rank, host and clocks of table run_meta */
    /* Since 1.3. */
    uint64_t max_file_bytes; /* once the file has so many, the run ends as stopped with the reason in its message, and
                                kvtrace_step_commit says so (KVTRACE_STATE). The file may be larger by what is written
                                in 0.1 s, and its log (-wal) has up to 64 MiB while it is recorded. 0: no limit */
    int32_t sample_every; /* N above 2: of N decode steps two that follow each other keep the rows of their selections
                             in the trace; the others keep all but these rows, counts of blocks and hits too. The
                             run gets the key sample_every of table run_meta. 0 to 2: all do */
    int32_t reserved;
} kvtrace_options;

/* W. Makes the file, or opens a trace to add a run. options: null for level selections and the defaults. */
KVTRACE_API int32_t kvtrace_open(const char* path, const kvtrace_options* options, kvtrace_writer* writer);
/* W. Waits at most timeout_ms until everything that was committed is in the file. KVTRACE_TIMEOUT: it was not by then,
 * and the library goes on writing. */
KVTRACE_API int32_t kvtrace_flush(kvtrace_writer writer, int32_t timeout_ms);
/* W. Finishes the file and closes the handle. A run that is still open ends as stopped; a step that is open is
 * discarded. The handle is also closed where the call fails with KVTRACE_TIMEOUT; the library then goes on by itself.
 */
KVTRACE_API int32_t kvtrace_close(kvtrace_writer writer, int32_t timeout_ms);

typedef struct kvtrace_health {
    uint32_t size;
    uint32_t reserved;
    int64_t dropped_steps;   /* committed, but not written: the queue or the disk was full */
    int64_t discarded_steps; /* by the caller, because of an error in the step, or open at the end */
    int64_t future_ids;      /* ids above the position of their query, dropped */
    int64_t duplicate_ids;   /* ids that were in their list already, dropped */
    int64_t writer_busy_ns;  /* CPU time of the writer thread */
    int32_t failed;          /* 1: the file is not written any more; kvtrace_last_error says why */
    int32_t reserved2;
    /* Since 1.3. */
    int64_t dropped_events; /* spans, samples, flows and states of requests that the full queue had no room for */
    int64_t queue_bytes;    /* handed over and not yet written, at most kvtrace_options.queue_bytes */
    int64_t file_bytes;     /* size of the file with all that was committed to it */
} kvtrace_health;
/* Fills `health` with the counts of the open run, or of the last one where none is open. */
KVTRACE_API int32_t kvtrace_get_health(kvtrace_writer writer, kvtrace_health* health);

/* What the caller knows and records; bits of kvtrace_run_info.knows. What is left out is shown as "not known", never as
 * 0. */
enum kvtrace_knows {
    KVTRACE_KNOWS_SELECTIONS = 1,     /* kvtrace_step_select */
    KVTRACE_KNOWS_HITS = 2,           /* `hit` of every selection, or hits and misses of layers */
    KVTRACE_KNOWS_BYTES = 4,          /* blocks and bytes of kvtrace_step_layer */
    KVTRACE_KNOWS_TRANSFER_TIMES = 8, /* transfer_ns of kvtrace_step_layer */
    KVTRACE_KNOWS_EXPOSED_TIMES = 16, /* exposed_ns of kvtrace_step_layer */
    KVTRACE_KNOWS_STEP_TIMES = 32,    /* start and end of steps */
    KVTRACE_KNOWS_STAGE_TIMES = 64    /* stage_ns of layers and steps */
};

typedef struct kvtrace_pair {
    const char* key;
    const char* value;
} kvtrace_pair;

typedef struct kvtrace_prompt {
    const int32_t* ids; /* [count] tokens, from position 0 */
    int64_t count;
    const char* text;       /* null: not known. The bytes of all tokens, end to end; one id has one text */
    const int64_t* offsets; /* [count + 1] into text */
} kvtrace_prompt;

typedef struct kvtrace_run_info {
    uint32_t size;
    uint32_t knows;   /* bits of kvtrace_knows */
    const char* name; /* null: "method on model", without a model "method" */
    const char* model;
    const char* method;
    const char* params_json; /* one JSON object; null: {} */
    const char* backend;     /* "cpu" or "cuda"; null: cpu */
    const char* device;      /* what it ran on */
    const char* link;        /* of host and device, for people */
    double link_gbps;        /* 1e9 bytes per second; only where transfer times are modelled */
    double link_latency_us;
    int32_t modelled;   /* 1: transfer times are modelled by the two numbers above; 0: measured */
    int32_t block_size; /* tokens of a block */
    int32_t layers;     /* at most 1024, like KV heads and sequences */
    int32_t kv_heads;   /* heads that select for themselves; 1 where one list serves all */
    int32_t query_heads;
    int32_t head_dim;
    int32_t sequences;     /* rows of the batch */
    int32_t device_slots;  /* block slots per (sequence, layer, KV head); 0: everything stays resident, or not known */
    int32_t budget_blocks; /* most blocks a head attends; 0: all */
    int32_t sink_blocks;   /* where no origin is given: so many of the first blocks have origin sink */
    int32_t window_blocks; /* where no origin is given: so many of the last blocks have origin window */
    int32_t prompt_count;  /* 0, or `sequences` */
    int64_t block_bytes;   /* keys and values of one block of one KV head; above 0 in a run that knows selections */
    const kvtrace_prompt* prompts;
    const kvtrace_pair* meta; /* rows of table run_meta, e.g. engine, engine_version */
    int64_t meta_count;
} kvtrace_run_info;

/* W. Begins a run, from whose beginning its times count. KVTRACE_STATE: the writer has an open run already. */
KVTRACE_API int32_t kvtrace_run_begin(kvtrace_writer writer, const kvtrace_run_info* info, kvtrace_run* run);
/* Nanoseconds since the run began, on the clock that KVTRACE_NOW takes. */
KVTRACE_API int32_t kvtrace_run_now(kvtrace_run run, int64_t* now_ns);
enum kvtrace_run_status { KVTRACE_FINISHED = 1, KVTRACE_STOPPED = 2, KVTRACE_FAILED = 3 };
/* Ends the run with a kvtrace_run_status. message: null, or a sentence for people. */
KVTRACE_API int32_t kvtrace_run_end(kvtrace_run run, int32_t status, const char* message);

enum kvtrace_phase {
    KVTRACE_PREFILL = 0,
    KVTRACE_DECODE = 1,
    /* Since 1.2, for prompts that are read in pieces, or of requests that come later. Steps of both kinds say with
     * kvtrace_step_prompt what they read, and a run may have any number of them, in any order. */
    KVTRACE_PROMPT = 2, /* the step reads prompts only */
    KVTRACE_MIXED = 3   /* some sequences read their prompts, others decode */
};
/* Begins a step: one forward pass of the whole batch. The prefill is step 0, decode steps are 1, 2, ...; a run has one
 * KVTRACE_PREFILL at most, and it comes before every decode step. A run's first step is step 0 if it is KVTRACE_PROMPT,
 * else step 1. tokens: fed in this step, all sequences. start_ns:
 * KVTRACE_NOW, or nanoseconds since the run began, not before the start of the step before. Steps get their numbers
 * when they are committed. They never overlap: where two do by KVTRACE_NOW, the later one counts from the end of the
 * other; given times that overlap are refused by kvtrace_step_commit. */
KVTRACE_API int32_t kvtrace_step_begin(kvtrace_run run, int32_t phase, int32_t tokens, int64_t start_ns,
                                       kvtrace_step* step);

/* A piece of the prompt of one sequence, or a whole prompt. Since 1.2. */
typedef struct kvtrace_prompt_piece {
    uint32_t size;
    int32_t sequence;
    int32_t
        begins; /* 1: the first piece of a prompt. What the sequence had before is over: its row has another request */
    int32_t tokens; /* read in this step, at least one */
    int64_t first;  /* position of the first of them; above 0 in a first piece whose prefix came from a cache */
    const int32_t*
        ids; /* [tokens]; null: not known. The trace keeps those of a sequence's first prompt, read from 0 on */
    const char* text; /* null: not known; text and offsets as in kvtrace_prompt */
    const int64_t* offsets;
} kvtrace_prompt_piece;
/* Says what a step of KVTRACE_PROMPT or KVTRACE_MIXED reads of the prompt of one sequence, which selects nothing in
 * that step: at most once for a sequence. The tokens of all pieces are among the step's; of KVTRACE_PROMPT they are all
 * of them, which kvtrace_step_commit checks. Since 1.2. */
KVTRACE_API int32_t kvtrace_step_prompt(kvtrace_step step, const kvtrace_prompt_piece* piece);

enum kvtrace_unit {
    KVTRACE_BLOCKS = 0, /* ids are blocks of block_size tokens */
    KVTRACE_TOKENS = 1, /* ids are token positions; the trace holds the blocks they lie in, with origin token-level */
    /* Since 1.3: ids are k words of 32 or 64 bits (id_type), and bit j of word i, from the lowest, is block 32 i + j or
     * 64 i + j: 1, it was selected. Strides and count are in words. No hit, score or origin; hits are a mask, too */
    KVTRACE_BITMASK = 2
};
enum kvtrace_id_type { KVTRACE_INT32 = 0, KVTRACE_INT64 = 1 };
enum kvtrace_origin {
    KVTRACE_SINK = 0,
    KVTRACE_WINDOW = 1,
    KVTRACE_QUERY_AWARE = 2,
    KVTRACE_QUERY_AGNOSTIC = 3,
    KVTRACE_TOKEN_LEVEL = 4
};

/* What one layer selected for the whole batch: a tensor of ids, rows x heads x k, with strides in elements. An array
 * that "lies like ids" has the same shape and strides. */
typedef struct kvtrace_selection {
    uint32_t size;
    int32_t layer;
    int32_t unit;
    int32_t id_type;
    const void* ids;
    int64_t rows, heads, k;
    int64_t row_stride, head_stride, id_stride;
    const int32_t* sequence; /* [rows] below the run's sequences; null: row i is sequence i */
    const int64_t* position; /* [rows] of the query's token, prompt included */
    const int32_t* count;    /* [rows * heads] how many of the k ids are valid; null: all. An id of -1 is ignored */
    const uint8_t* hit;      /* lies like ids; 1: the block was resident. Needed where the run knows hits */
    const float* score;      /* lies like ids; null: none */
    const uint8_t* origin;   /* lies like ids, kvtrace_origin; null: sink, window (see sink_blocks) or query-aware */
    const float* mass;       /* [rows * heads] attention mass captured, 0..1, NaN where not known; null: not known */
    int32_t head0;           /* the KV head that heads begin with, where several calls share the heads; else 0 */
    int32_t reserved;
    const void* hit_mask; /* since 1.3, of a KVTRACE_BITMASK: words that lie like ids; bit 1: the block was resident.
                             Needed where the run knows hits */
} kvtrace_selection;

/* At most once per layer, sequence and KV head of a step, and not in a prefill (KVTRACE_STATE). Sorts the ids; drops
 * -1, duplicates and ids above the query's position, and counts the last two in kvtrace_health; finds which blocks the
 * step before had selected too. */
KVTRACE_API int32_t kvtrace_step_select(kvtrace_step step, const kvtrace_selection* selection);

/* Says that a layer attended to what another layer, its leader, selected in this step: the same blocks, hits and scores
 * for every sequence and KV head, without a mass. The leader comes before the layer, has selected already, and is no
 * such layer itself; the layer has no selection of its own. Where the pairs are the same in all steps, the run gets the
 * key index_leader of table run_meta. Since 1.3. */
KVTRACE_API int32_t kvtrace_step_share(kvtrace_step step, int32_t layer, int32_t leader);

#define KVTRACE_STAGES 10
/* qkv_linear, rope, compression, stage1, pooling, offloading, stage2, attention, o_linear, ffn: docs/trace-format.md,
 * v_layer */
typedef struct kvtrace_layer {
    uint32_t size;
    int32_t layer;
    int64_t start_ns;                 /* nanoseconds since the run began; only where stage times are known */
    int64_t stage_ns[KVTRACE_STAGES]; /* wall time */
    int32_t h2d_blocks, d2h_blocks;
    int64_t h2d_bytes, d2h_bytes;
    int64_t transfer_ns;  /* link busy, both directions; the file splits it by bytes */
    int64_t exposed_ns;   /* of that, what the step waited for; at most transfer_ns */
    int32_t hits, misses; /* only of a layer without kvtrace_step_select: counts alone */
} kvtrace_layer;
/* Sets the times and counts of a layer in this step, in place of those of an earlier call. What the run does not know
 * stays 0. */
KVTRACE_API int32_t kvtrace_step_layer(kvtrace_step step, const kvtrace_layer* layer);
/* Wall time of the stages outside the layers. */
KVTRACE_API int32_t kvtrace_step_stages(kvtrace_step step, int64_t embed_ns, int64_t lm_head_ns, int64_t sample_ns);
/* Tokens that the step produced for one sequence: ids[count] at position, position + 1, ... ; text and offsets as in
 * kvtrace_prompt, both null where no text is known. */
KVTRACE_API int32_t kvtrace_step_tokens(kvtrace_step step, int32_t sequence, int64_t position, const int32_t* ids,
                                        int64_t count, const char* text, const int64_t* offsets);
/* Hands the whole step over and closes the handle. end_ns: KVTRACE_NOW, or nanoseconds since the run began. A step that
 * breaks a rule is discarded and counted in kvtrace_health. */
KVTRACE_API int32_t kvtrace_step_commit(kvtrace_step step, int64_t end_ns);
/* Closes the handle without recording the step, which is counted in kvtrace_health. */
KVTRACE_API int32_t kvtrace_step_discard(kvtrace_step step);

/* ---- Requests. Since 1.3 ----
 *
 * A server works for endless requests in a few rows. A request gets a row when it begins and gives it back when it
 * ends; steps name it by the row, which is `sequence` everywhere. The library finds out itself when a request was first
 * worked for, made its first token, and what it selected: from the steps in which its row selects, reads a piece of its
 * prompt or makes tokens. What a row's new request keeps is not known in its first step (kvtrace_step_select). */

typedef struct kvtrace_request {
    uint32_t size;
    int32_t prompt_tokens; /* 0: not known */
    int32_t max_tokens;    /* tokens it asks for at most; 0: not known */
    int32_t reserved;
    int64_t arrival_ns;      /* KVTRACE_NOW, or nanoseconds since the run began, 0 or more */
    const char* external_id; /* your name of it; null: none. Whoever gets the trace reads it */
    const char* kind;        /* a class of requests, for people; null: none */
} kvtrace_request;
/* Begins a request and gives it the lowest row, of 0 to kvtrace_run_info.sequences - 1, that no request has. *sequence:
 * the row. KVTRACE_STATE: every row has a request. */
KVTRACE_API int32_t kvtrace_request_begin(kvtrace_run run, const kvtrace_request* request, int32_t* sequence);
enum kvtrace_request_outcome {
    KVTRACE_REQUEST_STOP = 1,   /* it made all its tokens: an end token, or a text to stop at */
    KVTRACE_REQUEST_LENGTH = 2, /* it made as many tokens as it may */
    KVTRACE_REQUEST_CANCELLED = 3,
    KVTRACE_REQUEST_FAILED = 4,
    KVTRACE_REQUEST_REFUSED = 5 /* only of a request that no step has worked for */
};
/* Ends the request that has the row, which is then free; call it behind the commit of the request's last step. outcome:
 * a kvtrace_request_outcome. reason: null, or a sentence for people. end_ns: KVTRACE_NOW, or nanoseconds since the run
 * began, not before its first token. Requests that are open when the run ends have no end. */
KVTRACE_API int32_t kvtrace_request_end(kvtrace_run run, int32_t sequence, int32_t outcome, const char* reason,
                                        int64_t end_ns);

/* ---- The timeline ---- */

/* A stretch of time on a track of the timeline. step, layer: -1 where it belongs to none. kind: 0 range, 1 kernel, 2
 * copy. bytes: what a copy moved; -1: not known. */
KVTRACE_API int32_t kvtrace_span(kvtrace_run run, const char* track, const char* name, int64_t start_ns,
                                 int64_t duration_ns, int32_t step, int32_t layer, int32_t kind, int64_t bytes);
/* A count over an interval, 0 or more. The samples of a track come in the order of time and do not overlap. */
KVTRACE_API int32_t kvtrace_counter(kvtrace_run run, const char* track, int64_t start_ns, int64_t duration_ns,
                                    int64_t value);
/* A value that holds from time_ns on until the track's next one, e.g. "KV cache used (bytes)": the end of the track's
 * name is the unit, which is drawn as bytes where it is (bytes). time_ns: KVTRACE_NOW, or nanoseconds since the run
 * began. value: a finite number. Since 1.3. */
KVTRACE_API int32_t kvtrace_gauge(kvtrace_run run, const char* track, int64_t time_ns, double value);

/* Gives a text a number, for the names of kvtrace_spans. length: in bytes; -1: up to the first 0. The same text has the
 * same number, for as long as the writer is open. KVTRACE_UNSUPPORTED: a writer holds 2^20 texts and 64 MiB of them.
 * Since 1.3. */
KVTRACE_API int32_t kvtrace_intern(kvtrace_writer writer, const char* text, int64_t length, int32_t* name);
/* A span as kvtrace_span takes it, and more. Since 1.3. */
typedef struct kvtrace_span_info {
    uint32_t size;
    int32_t track; /* of kvtrace_intern */
    int32_t name;  /* likewise */
    int32_t kind;  /* 0 range, 1 kernel, 2 copy */
    int64_t start_ns, duration_ns;
    int64_t bytes;       /* what a copy moved; -1: not known */
    int32_t step, layer; /* -1: none */
    int32_t depth;       /* how many spans of the track it lies in */
    int32_t category;    /* of kvtrace_intern, what kind it is for people; 0: none */
    const char* args;    /* one JSON object; null: none */
} kvtrace_span_info;
/* Adds spans[0 .. count), which all have the size of the first one; all or none of them. *first: null, or the number of
 * the first span in the run; those behind it follow. */
KVTRACE_API int32_t kvtrace_spans(kvtrace_run run, const kvtrace_span_info* spans, int64_t count, int64_t* first);
/* Says that one span led to another, e.g. a call to the copy that it started. from, to: numbers of kvtrace_spans, both
 * handed over before. A flow whose span was dropped is left out. Since 1.3. */
KVTRACE_API int32_t kvtrace_flow(kvtrace_run run, int64_t from, int64_t to);

/* A reading of another clock, so that runs of several processes, or of a GPU, can be put on one clock: at own_ns since
 * the run began the clock showed reference_ns, and the two moments are at most error_ns apart. Clocks of one name are
 * one clock. In a run with a rank that has no key `clocks` of the caller's, the library reads the machine's monotonic
 * clock and UTC itself: at its begin, every 10 s and at its end. Since 1.1. */
KVTRACE_API int32_t kvtrace_clock(kvtrace_run run, const char* clock, int64_t own_ns, int64_t reference_ns,
                                  int64_t error_ns);

/* ---- Reading ---- */

/* W. Reads one table of a trace into memory: "runs", "steps", "layers", "selections", "transfers", "tokens", "prompts",
 * "pieces" (since 1.2), "meta", and since 1.3 "requests", "spans", "counters", "gauges" or "flows". run: 0 for all
 * runs. A file that is being recorded may be read. What a run does not know is absent. */
KVTRACE_API int32_t kvtrace_read(const char* path, const char* name, int32_t run, kvtrace_table* table);

enum kvtrace_column_type {
    KVTRACE_COLUMN_INT = 0,
    KVTRACE_COLUMN_REAL = 1,
    KVTRACE_COLUMN_TEXT = 2,    /* row i is text[offsets[i] .. offsets[i + 1]) */
    KVTRACE_COLUMN_INT_LIST = 3 /* row i is ints[offsets[i] .. offsets[i + 1]) */
};
typedef struct kvtrace_column {
    uint32_t size;
    int32_t type;
    const char* name;
    int64_t rows;
    const uint8_t* present; /* [rows] 0: not known or undefined; the value is then 0, NaN or empty */
    const int64_t* ints;
    const double* reals;
    const char* text;
    const int64_t* offsets; /* [rows + 1] */
} kvtrace_column;
/* The number of the table's columns. */
KVTRACE_API int32_t kvtrace_table_columns(kvtrace_table table, int32_t* columns);
/* Column `index`, from 0 on. Its pointers are valid until the table is freed. */
KVTRACE_API int32_t kvtrace_table_column(kvtrace_table table, int32_t index, kvtrace_column* column);
/* Frees the table and closes its handle. */
KVTRACE_API int32_t kvtrace_table_free(kvtrace_table table);

#ifdef __cplusplus
}
#endif

#endif
