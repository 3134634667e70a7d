// Records all that a trace can say of a step: blocks, hits, scores, transfers, the time of stages, tokens.
//     c++ -std=c++17 everything.cpp $(pkg-config --cflags --libs kvscope_trace) && ./a.out everything.kvtrace
#include <kvscope_trace.h>

#include <array>
#include <cstdio>
#include <cstdlib>

static void check(int32_t status) {
    if (status != KVTRACE_OK) std::exit(std::fprintf(stderr, "%s\n", kvtrace_last_error()) > 0);
}
template <class Struct> Struct sized() {
    Struct empty{};
    empty.size = sizeof empty;
    return empty;
}

int main(int argc, char** argv) {
    auto options = sized<kvtrace_options>();
    options.level = KVTRACE_FULL;
    kvtrace_writer writer = 0;
    check(kvtrace_open(argc > 1 ? argv[1] : "everything.kvtrace", &options, &writer));
    auto info = sized<kvtrace_run_info>();
    info.knows = 127; // all of kvtrace_knows
    info.model = "my-model", info.method = "my-method", info.device_slots = 8;
    info.block_size = 16, info.block_bytes = 4096, info.layers = 1, info.kv_heads = 2, info.sequences = 1;
    const std::array<int32_t, 101> prompt{}; // of token 0
    const kvtrace_prompt prompts{prompt.data(), 101, nullptr, nullptr};
    info.prompts = &prompts, info.prompt_count = 1;
    kvtrace_run run = 0;
    check(kvtrace_run_begin(writer, &info, &run));
    for (int32_t i = 0; i < 40; ++i) {
        const int64_t start = 1000000 * i;
        kvtrace_step step = 0;
        check(kvtrace_step_begin(run, i == 0 ? KVTRACE_PREFILL : KVTRACE_DECODE, i == 0 ? 101 : 1, start, &step));
        if (i > 0) {
            const int64_t position = 100 + i;
            const int32_t now = int32_t(position / 16);
            const std::array<int32_t, 6> ids{0, i % 5 + 1, now, 0, now - 1, now}; // [2 heads][3 blocks]
            const std::array<uint8_t, 6> hit{1, i % 5 != 0, 1, 1, 1, 1};
            const std::array<float, 6> score{0.5f, 2.f, 1.f, 0.5f, 3.f, 1.f};
            auto selection = sized<kvtrace_selection>();
            selection.ids = ids.data(), selection.hit = hit.data(), selection.score = score.data();
            selection.rows = 1, selection.heads = 2, selection.k = 3, selection.head_stride = 3;
            selection.id_stride = 1, selection.position = &position;
            check(kvtrace_step_select(step, &selection));
        }
        auto layer = sized<kvtrace_layer>();
        layer.start_ns = start + 1000, layer.stage_ns[5] = 5000, layer.stage_ns[6] = 90000; // offloading, stage2
        if (i % 5 == 4) layer.h2d_blocks = 1, layer.h2d_bytes = 4096, layer.transfer_ns = 4000, layer.exposed_ns = 3000;
        check(kvtrace_step_layer(step, &layer));
        const int32_t token = 40 + i;
        check(kvtrace_step_tokens(step, 0, 101 + i, &token, 1, "word ", std::array<int64_t, 2>{0, 5}.data()));
        check(kvtrace_step_commit(step, start + 900000));
    }
    check(kvtrace_span(run, "my engine", "load", 0, 500000, -1, -1, 0, -1));
    check(kvtrace_run_end(run, KVTRACE_FINISHED, nullptr));
    check(kvtrace_close(writer, 5000));
}
