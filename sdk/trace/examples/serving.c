/* Records a server that works for one request after another in two rows, and what its timeline knows beside the steps.
 * cc serving.c $(pkg-config --cflags --libs kvscope_trace) && ./a.out serving.kvtrace */
#include <kvscope_trace.h>

#include <stdio.h>
#include <stdlib.h>

enum { kRows = 2, kTokens = 8, kSteps = 48 };

static void check(int32_t status) {
    if (status != KVTRACE_OK) exit(fprintf(stderr, "%s\n", kvtrace_last_error()) > 0);
}

int main(int argc, char** argv) {
    kvtrace_options options = {.size = sizeof options, .level = KVTRACE_SELECTIONS, .max_file_bytes = 1 << 30};
    kvtrace_writer writer;
    check(kvtrace_open(argc > 1 ? argv[1] : "serving.kvtrace", &options, &writer));
    kvtrace_run_info info = {.size = sizeof info, .model = "my-model", .method = "my-method"};
    info.knows = KVTRACE_KNOWS_SELECTIONS | KVTRACE_KNOWS_STEP_TIMES, info.block_size = 16, info.block_bytes = 4096;
    info.layers = 1, info.kv_heads = 1, info.sequences = kRows;
    kvtrace_run run;
    int32_t track, plan, load, made[kRows], has[kRows] = {0}, given;
    check(kvtrace_run_begin(writer, &info, &run));
    check(kvtrace_intern(writer, "scheduler", -1, &track));
    check(kvtrace_intern(writer, "plan", -1, &plan));
    check(kvtrace_intern(writer, "load", -1, &load));
    int64_t position[kRows], now, first;
    for (int32_t i = 0; i < kSteps; ++i) {
        const int32_t rows = i < 3 ? 1 : kRows; /* the second row has its first request three steps later */
        for (int32_t row = 0; row < rows; ++row) {
            if (has[row] && made[row] == kTokens)
                check(kvtrace_request_end(run, row, KVTRACE_REQUEST_LENGTH, NULL, KVTRACE_NOW)), has[row] = 0;
            if (has[row]) continue;
            kvtrace_request request = {.size = sizeof request, .prompt_tokens = 100, .max_tokens = kTokens};
            request.arrival_ns = KVTRACE_NOW;
            check(kvtrace_request_begin(run, &request, &given)); /* the lowest row that is free: here it is `row` */
            has[given] = 1, position[given] = 100, made[given] = 0;
        }
        check(kvtrace_run_now(run, &now));
        kvtrace_span_info span = {.size = sizeof span, .track = track, .name = plan, .start_ns = now, .bytes = -1};
        span.step = span.layer = -1;
        kvtrace_span_info spans[2] = {span, span};
        spans[1].name = load;
        check(kvtrace_spans(run, spans, 2, &first));
        check(kvtrace_flow(run, first, first + 1));
        check(kvtrace_gauge(run, "requests", KVTRACE_NOW, rows));
        kvtrace_step step;
        check(kvtrace_step_begin(run, KVTRACE_DECODE, rows, KVTRACE_NOW, &step));
        const uint32_t blocks[kRows] = {1u | 1u << (i % 6), 1u | 1u << 6}; /* block 0 and another one */
        kvtrace_selection selection = {.size = sizeof selection, .unit = KVTRACE_BITMASK, .ids = blocks};
        selection.rows = rows, selection.heads = 1, selection.k = 1, selection.row_stride = 1;
        selection.position = position;
        check(kvtrace_step_select(step, &selection));
        check(kvtrace_step_commit(step, KVTRACE_NOW));
        for (int32_t row = 0; row < rows; ++row) ++position[row], ++made[row];
    }
    check(kvtrace_run_end(run, KVTRACE_FINISHED, NULL));
    check(kvtrace_close(writer, 5000));
}
