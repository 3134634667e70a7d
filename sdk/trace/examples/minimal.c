/* Records what a decode loop selected, and nothing else: two layers, two sequences, tokens chosen for all heads at
 * once. cc minimal.c $(pkg-config --cflags --libs kvscope_trace) && ./a.out minimal.kvtrace */
#include <kvscope_trace.h>

#include <stdio.h>

enum { kLayers = 2, kSequences = 2, kTokens = 4, kSteps = 50 };

static int failed(const char* what) {
    fprintf(stderr, "%s: %s\n", what, kvtrace_last_error());
    return 1;
}

int main(int argc, char** argv) {
    kvtrace_writer writer;
    if (kvtrace_open(argc > 1 ? argv[1] : "minimal.kvtrace", NULL, &writer) != KVTRACE_OK) return failed("open");

    kvtrace_run_info info = {.size = sizeof info};
    info.knows = KVTRACE_KNOWS_SELECTIONS;
    info.model = "my-model";
    info.method = "my-method";
    info.block_size = 16;
    info.block_bytes = 16 * 2 * 128 * 2; /* keys and values of 128 numbers of 2 bytes */
    info.layers = kLayers;
    info.kv_heads = 1;
    info.sequences = kSequences;
    kvtrace_run run;
    if (kvtrace_run_begin(writer, &info, &run) != KVTRACE_OK) return failed("run_begin");

    for (int32_t i = 0; i < kSteps; ++i) {
        kvtrace_step step;
        if (kvtrace_step_begin(run, KVTRACE_DECODE, kSequences, KVTRACE_NOW, &step) != KVTRACE_OK)
            return failed("step_begin");
        const int64_t position[kSequences] = {100 + i, 200 + i};
        for (int32_t layer = 0; layer < kLayers; ++layer) {
            /* [sequences][tokens] positions; -1 where fewer were chosen */
            const int32_t ids[kSequences][kTokens] = {{0, 16 + i, 99 + i, 100 + i}, {0, 7 * i, 200 + i, -1}};
            kvtrace_selection selection = {.size = sizeof selection};
            selection.layer = layer;
            selection.unit = KVTRACE_TOKENS;
            selection.ids = ids;
            selection.rows = kSequences;
            selection.heads = 1;
            selection.k = kTokens;
            selection.row_stride = kTokens;
            selection.id_stride = 1;
            selection.position = position;
            if (kvtrace_step_select(step, &selection) != KVTRACE_OK) return failed("select");
        }
        if (kvtrace_step_commit(step, KVTRACE_NOW) != KVTRACE_OK) return failed("commit");
    }
    if (kvtrace_run_end(run, KVTRACE_FINISHED, NULL) != KVTRACE_OK) return failed("run_end");
    return kvtrace_close(writer, 5000) != KVTRACE_OK ? failed("close") : 0;
}
