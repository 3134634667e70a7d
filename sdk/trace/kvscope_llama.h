/* Records what a model of llama.cpp selects: the callback for llama_context_params.cb_eval. C99 and C++, this header
 * alone; it is compiled with llama.cpp's headers and linked with libkvscope_trace.
 *
 *     struct kvscope_llama rec;
 *     kvscope_llama_init(&rec, run);                  a run that knows KVTRACE_KNOWS_SELECTIONS
 *     params.cb_eval = kvscope_llama_eval;
 *     params.cb_eval_user_data = &rec;                before llama_init_from_model
 *     ...
 *     kvscope_llama_begin(&rec, &position, NULL, 1);  before each llama_decode of one token per sequence
 *     llama_decode(context, batch);
 *     kvscope_llama_end(&rec);
 *     ...
 *     kvscope_llama_free(&rec);
 *
 * A llama_decode that reads prompts is told of before it begins, so that its step, its tokens and its time are
 * recorded; what a prompt selects is not:
 *
 *     kvscope_llama_prompt(&rec, 0, 0, n_prompt, ids, true);   for each sequence that reads some of its prompt
 *     kvscope_llama_begin(&rec, NULL, NULL, 0);                and `rows` sequences that decode beside them
 *     llama_decode(context, batch);                            whose tokens come first in the batch
 *     kvscope_llama_end(&rec);
 *
 * A prompt that is not to be recorded is decoded without begin and end, and no node is asked for.
 *
 * The selection of layer L is the node "top_k-L" of the graph, int32 [k, tokens, 1, streams]. Asking for a node splits
 * the graph there, so only these nodes are asked for (and "indexer_score-L", float [cells, tokens, 1, streams], where
 * `scores` is set). The ids are cells of the KV cache. A cell is a position only for one sequence in a fresh, unified
 * cache that was never shifted; for everything else set position_of_cell.
 *
 * Nothing here stops llama.cpp: what cannot be recorded turns the recording off, and `problem` says why. */
#ifndef KVSCOPE_LLAMA_H
#define KVSCOPE_LLAMA_H

#include <ggml-backend.h>
#include <ggml.h>

#include <kvscope_trace.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kvscope_llama {
    kvtrace_run run;
    kvtrace_step step;     /* open between begin and end; 0: none is open, and no node is asked for */
    const char* selection; /* beginning of the nodes' names, before "-L"; "top_k" */
    const char* score;     /* the same of scores; "indexer_score" */
    bool scores;           /* records scores too: the run has level KVTRACE_FULL */
    void* user;            /* passed to the function below */
    /* Position of the token whose keys a cell holds, for a row of the batch; negative: none. Null: cells are positions
     */
    int64_t (*position_of_cell)(void* user, int32_t row, int32_t cell);
    int64_t recorded;  /* selections that were handed over, one a layer */
    char problem[256]; /* why the recording was turned off; "": it was not */

    /* used by the functions below only */
    int32_t rows;        /* that decode */
    int32_t batch;       /* tokens of the batch: the rows, and behind them those of prompts */
    int32_t piece_count; /* told of the step that begins next */
    kvtrace_prompt_piece* pieces;
    int64_t* position;    /* [rows] */
    int32_t* sequence;    /* [rows] */
    int32_t* ids;         /* [rows][k] */
    float* chosen_scores; /* [rows][k] */
    char* raw;            /* a tensor as ggml holds it */
    float* layer_scores;  /* [rows][cells] of score_layer */
    int64_t score_cells;
    int32_t score_layer;
    size_t ids_bytes, chosen_bytes, raw_bytes, layer_bytes, row_bytes, piece_room;
};

static inline void kvscope_llama_init(struct kvscope_llama* rec, kvtrace_run run) {
    memset(rec, 0, sizeof *rec);
    rec->run = run;
    rec->selection = "top_k";
    rec->score = "indexer_score";
    rec->score_layer = -1;
}

static inline void kvscope_llama_free(struct kvscope_llama* rec) {
    free(rec->position);
    free(rec->sequence);
    free(rec->ids);
    free(rec->chosen_scores);
    free(rec->raw);
    free(rec->layer_scores);
    free(rec->pieces);
    memset(rec, 0, sizeof *rec);
}

/* Turns the recording off; a step that is open is lost. */
static inline void kvscope_llama_fail(struct kvscope_llama* rec, const char* why) {
    if (rec->step != 0) kvtrace_step_discard(rec->step);
    rec->step = 0;
    if (rec->problem[0] == '\0') snprintf(rec->problem, sizeof rec->problem, "%s", why);
}

/* Room for so many bytes; false: there is none. What was in it may be lost. */
static inline bool kvscope_llama_room(void** memory, size_t* have, size_t bytes) {
    if (*have >= bytes && *memory != NULL) return true;
    free(*memory);
    *memory = malloc(bytes > 0 ? bytes : 1);
    *have = *memory != NULL ? bytes : 0;
    return *memory != NULL;
}

/* Says that the next step reads `tokens` tokens of the prompt of a sequence, from position `first` on. ids: [tokens],
 * read by kvscope_llama_begin; null: not known. begins: it is the first piece of a prompt. */
static inline void kvscope_llama_prompt(struct kvscope_llama* rec, int32_t sequence, int64_t first, int32_t tokens,
                                        const int32_t* ids, bool begins) {
    if (rec->problem[0] != '\0' || rec->step != 0) return;
    const size_t count = (size_t)rec->piece_count;
    if (count == rec->piece_room) {
        const size_t room = count > 0 ? 2 * count : 4;
        kvtrace_prompt_piece* more = (kvtrace_prompt_piece*)realloc(rec->pieces, room * sizeof *more);
        if (more == NULL) {
            kvscope_llama_fail(rec, "there is no memory for the prompts of the batch");
            return;
        }
        rec->pieces = more;
        rec->piece_room = room;
    }
    kvtrace_prompt_piece* piece = &rec->pieces[count];
    memset(piece, 0, sizeof *piece);
    piece->size = (uint32_t)sizeof *piece;
    piece->sequence = sequence;
    piece->begins = begins ? 1 : 0;
    piece->tokens = tokens;
    piece->first = first;
    piece->ids = ids;
    ++rec->piece_count;
}

/* Takes over the position and the sequence of each row that decodes; false and turned off: there is no memory. */
static inline bool kvscope_llama_rows(struct kvscope_llama* rec, const int64_t* position, const int32_t* sequence,
                                      int32_t rows) {
    const size_t count = (size_t)rows;
    if (rec->row_bytes < count) {
        free(rec->position);
        free(rec->sequence);
        rec->position = (int64_t*)malloc(count * sizeof(int64_t));
        rec->sequence = (int32_t*)malloc(count * sizeof(int32_t));
        rec->row_bytes = rec->position != NULL && rec->sequence != NULL ? count : 0;
        if (rec->row_bytes == 0) {
            kvscope_llama_fail(rec, "there is no memory for the rows of the batch");
            return false;
        }
    }
    for (int32_t row = 0; row < rows; ++row) {
        rec->position[row] = position[row];
        rec->sequence[row] = sequence != NULL ? sequence[row] : row;
    }
    return true;
}

/* Begins a step. position: [rows] of the token of each row that decodes, prompt included. sequence: [rows] below the
 * run's sequences; null: row i is sequence i. rows: 0 where the step only reads the prompts that it was told of. */
static inline void kvscope_llama_begin(struct kvscope_llama* rec, const int64_t* position, const int32_t* sequence,
                                       int32_t rows) {
    const int32_t pieces = rec->piece_count;
    if (rec->problem[0] != '\0' || rec->step != 0) return;
    rec->piece_count = 0;
    if (rows < 0 || rows + pieces < 1 || (rows > 0 && position == NULL)) return;
    if (rows > 0 && rows + pieces > 1 && rec->position_of_cell == NULL) {
        kvscope_llama_fail(rec,
                           "several sequences share the cells of the KV cache, so that a cell is not a position; set "
                           "position_of_cell");
        return;
    }
    if (rows > 0 && !kvscope_llama_rows(rec, position, sequence, rows)) return;
    rec->rows = rows;
    rec->batch = rows;
    for (int32_t i = 0; i < pieces; ++i) rec->batch += rec->pieces[i].tokens;
    rec->score_layer = -1;
    const int32_t phase = pieces == 0 ? KVTRACE_DECODE : rows == 0 ? KVTRACE_PROMPT : KVTRACE_MIXED;
    if (kvtrace_step_begin(rec->run, phase, rec->batch, KVTRACE_NOW, &rec->step) != KVTRACE_OK) {
        rec->step = 0;
        kvscope_llama_fail(rec, kvtrace_last_error());
        return;
    }
    for (int32_t i = 0; i < pieces; ++i)
        if (kvtrace_step_prompt(rec->step, &rec->pieces[i]) != KVTRACE_OK) {
            kvscope_llama_fail(rec, kvtrace_last_error());
            return;
        }
}

/* Hands the step over. */
static inline void kvscope_llama_end(struct kvscope_llama* rec) {
    if (rec->step == 0) return;
    const kvtrace_step step = rec->step;
    rec->step = 0;
    if (kvtrace_step_commit(step, KVTRACE_NOW) != KVTRACE_OK) kvscope_llama_fail(rec, kvtrace_last_error());
}

/* L of a node "PREFIX-L"; -1: it has another name. */
static inline int32_t kvscope_llama_layer(const char* name, const char* prefix) {
    const size_t length = strlen(prefix);
    if (strncmp(name, prefix, length) != 0 || name[length] != '-') return -1;
    char* end = NULL;
    const long layer = strtol(name + length + 1, &end, 10);
    return end != name + length + 1 && *end == '\0' && layer >= 0 && layer < 1024 ? (int32_t)layer : -1;
}

/* Element i of row `row` of the tensor in rec->raw, whose rows are tokens of streams. */
static inline const void* kvscope_llama_at(const struct kvscope_llama* rec, const struct ggml_tensor* t, int64_t row,
                                           int64_t i) {
    const int64_t stream = row / t->ne[1], token = row % t->ne[1];
    return rec->raw + (size_t)i * t->nb[0] + (size_t)token * t->nb[1] + (size_t)stream * t->nb[3];
}

/* Copies a tensor to the host, as it lies; false and turned off: it is not one row for each token of the batch. Beside
 * prompts the batch must be one ubatch (n_ubatch) of one stream, in which the rows that decode come first. */
static inline bool kvscope_llama_read(struct kvscope_llama* rec, const struct ggml_tensor* t, enum ggml_type type) {
    char why[200];
    if (t->type != type || t->ne[2] != 1 || t->ne[1] * t->ne[3] != rec->batch ||
        (rec->batch != rec->rows && t->ne[3] != 1)) {
        snprintf(why, sizeof why, "node %.64s has type %d and shape [%lld, %lld, %lld, %lld] for %d rows of the batch",
                 t->name, (int)t->type, (long long)t->ne[0], (long long)t->ne[1], (long long)t->ne[2],
                 (long long)t->ne[3], (int)rec->batch);
        kvscope_llama_fail(rec, why);
        return false;
    }
    const size_t bytes = ggml_nbytes(t);
    if (!kvscope_llama_room((void**)&rec->raw, &rec->raw_bytes, bytes)) {
        kvscope_llama_fail(rec, "there is no memory for a node of the graph");
        return false;
    }
    ggml_backend_tensor_get(t, rec->raw, 0, bytes);
    return true;
}

static inline void kvscope_llama_take_scores(struct kvscope_llama* rec, const struct ggml_tensor* t, int32_t layer) {
    if (!kvscope_llama_read(rec, t, GGML_TYPE_F32)) return;
    const size_t cells = (size_t)t->ne[0], rows = (size_t)rec->rows;
    if (!kvscope_llama_room((void**)&rec->layer_scores, &rec->layer_bytes, cells * rows * sizeof(float))) {
        kvscope_llama_fail(rec, "there is no memory for scores");
        return;
    }
    for (size_t row = 0; row < rows; ++row)
        for (size_t cell = 0; cell < cells; ++cell)
            memcpy(&rec->layer_scores[row * cells + cell], kvscope_llama_at(rec, t, (int64_t)row, (int64_t)cell),
                   sizeof(float));
    rec->score_cells = t->ne[0];
    rec->score_layer = layer;
}

static inline void kvscope_llama_take(struct kvscope_llama* rec, const struct ggml_tensor* t, int32_t layer) {
    if (!kvscope_llama_read(rec, t, GGML_TYPE_I32)) return;
    const size_t k = (size_t)t->ne[0], rows = (size_t)rec->rows;
    const bool scored = rec->scores && rec->score_layer == layer;
    if (!kvscope_llama_room((void**)&rec->ids, &rec->ids_bytes, k * rows * sizeof(int32_t)) ||
        (scored && !kvscope_llama_room((void**)&rec->chosen_scores, &rec->chosen_bytes, k * rows * sizeof(float)))) {
        kvscope_llama_fail(rec, "there is no memory for a selection");
        return;
    }
    for (size_t row = 0; row < rows; ++row)
        for (size_t i = 0; i < k; ++i) {
            int32_t cell = -1;
            memcpy(&cell, kvscope_llama_at(rec, t, (int64_t)row, (int64_t)i), sizeof cell);
            const int64_t position =
                cell < 0 || rec->position_of_cell == NULL ? cell : rec->position_of_cell(rec->user, (int32_t)row, cell);
            const bool valid = position >= 0 && position <= rec->position[row]; /* padded and future cells */
            rec->ids[row * k + i] = valid ? (int32_t)position : -1;
            if (scored)
                rec->chosen_scores[row * k + i] = cell >= 0 && cell < rec->score_cells
                                                      ? rec->layer_scores[row * (size_t)rec->score_cells + (size_t)cell]
                                                      : 0.0f;
        }
    kvtrace_selection selection;
    memset(&selection, 0, sizeof selection);
    selection.size = (uint32_t)sizeof selection;
    selection.layer = layer;
    selection.unit = KVTRACE_TOKENS;
    selection.id_type = KVTRACE_INT32;
    selection.ids = rec->ids;
    selection.rows = rec->rows;
    selection.heads = 1;
    selection.k = t->ne[0];
    selection.row_stride = t->ne[0];
    selection.head_stride = t->ne[0];
    selection.id_stride = 1;
    selection.sequence = rec->sequence;
    selection.position = rec->position;
    if (scored) selection.score = rec->chosen_scores;
    if (kvtrace_step_select(rec->step, &selection) != KVTRACE_OK)
        kvscope_llama_fail(rec, kvtrace_last_error());
    else
        ++rec->recorded;
}

/* A ggml_backend_sched_eval_callback; user: the struct kvscope_llama. Never cancels the graph. */
static inline bool kvscope_llama_eval(struct ggml_tensor* t, bool ask, void* user) {
    struct kvscope_llama* rec = (struct kvscope_llama*)user;
    if (rec->step == 0 || rec->rows == 0) return !ask;
    const int32_t layer = kvscope_llama_layer(t->name, rec->selection);
    const int32_t scored = rec->scores ? kvscope_llama_layer(t->name, rec->score) : -1;
    if (ask) return layer >= 0 || scored >= 0;
    if (scored >= 0) kvscope_llama_take_scores(rec, t, scored);
    if (layer >= 0 && rec->step != 0) kvscope_llama_take(rec, t, layer);
    return true;
}

#ifdef __cplusplus
}
#endif

#endif
