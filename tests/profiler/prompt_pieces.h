// A trace as another engine writes it by hand from docs/trace-format.md, whose prompts are read in pieces: a prompt in
// three steps, two steps that read another one beside the first sequence's decoding, and a third one in the row of the
// second, which is over by then.
#pragma once

#include "tests/profiler/sql_rows.h"
#include "tests/support/places.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <fmt/format.h>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace kvscope::test {

/// step: what it reads (sequence, begins, first, tokens), and the position that each decoding sequence is fed.
struct HandStep {
    std::vector<std::array<int, 4>> pieces;
    std::vector<std::pair<int, int>> fed;
    std::int64_t ns = 0;
};

inline const std::vector<HandStep>& handSteps() {
    static const std::vector<HandStep> steps{
        {{{0, 1, 0, 32}}, {}, 5'000'000},        // 0: prompt
        {{{0, 0, 32, 32}}, {}, 5'000'000},       // 1
        {{{0, 0, 64, 20}}, {}, 4'000'000},       // 2: gives the token at 84
        {{}, {{0, 84}}, 1'500'000},              // 3: cold
        {{}, {{0, 85}}, 1'000'000},              // 4: steady
        {{{1, 1, 0, 24}}, {{0, 86}}, 9'000'000}, // 5: mixed
        {{{1, 0, 24, 8}}, {{0, 87}}, 6'000'000}, // 6: mixed; gives sequence 1 the token at 32
        {{}, {{0, 88}, {1, 32}}, 2'000'000},     // 7: cold, sequence 1 selects for the first time
        {{}, {{0, 89}, {1, 33}}, 1'200'000},     // 8: steady
        {{{1, 1, 0, 17}}, {}, 3'000'000},        // 9: another prompt in row 1; gives the token at 17
        {{}, {{0, 90}, {1, 17}}, 2'000'000},     // 10: cold
        {{}, {{0, 91}, {1, 18}}, 1'300'000},     // 11: steady
    };
    return steps;
}
inline constexpr int kHandLayers = 2, kHandBlock = 16;

/// The blocks that a layer selects for a sequence that is fed a position: the first, one in the middle, the newest.
inline std::vector<int> handBlocks(int step, int layer, int fed) {
    const int newest = fed / kHandBlock;
    std::vector<int> blocks{0};
    if (newest > 1) blocks.push_back(1 + (step / 2 + layer) % (newest - 1));
    if (newest > 0) blocks.push_back(newest);
    return blocks;
}

/// Writes the trace. Blocks that the head has not selected in its step before are misses, except the newest one.
inline void writePromptPieces(const std::string& path) {
    std::ifstream file(source("resources/sql/schema.sql"));
    const std::string schema{std::istreambuf_iterator<char>(file), {}};
    std::string sql =
        "PRAGMA page_size=16384; PRAGMA application_id=0x4B565343; PRAGMA user_version=1; BEGIN;" + schema;
    sql += "INSERT INTO run VALUES (1,'pieces','2026-01-31T12:00:00Z','my-model','my-method','{}','cuda','my GPU',"
           "'PCIe 5','measured',55.5,0,16,2,1,1,128,2,8,3,8192,'selections','finished','');"
           "INSERT INTO health VALUES (1,'my engine 1.0',0,0,1769860860000,'');"
           "INSERT INTO run_meta VALUES (1,'engine','my engine'), (1,'knows','[\"selections\",\"hits\",\"bytes\","
           "\"transfer_times\",\"exposed_times\",\"step_times\",\"stage_times\"]');";
    for (int i = 0; i < 84; ++i) sql += fmt::format("INSERT INTO prompt VALUES ({},{},'p',NULL);", (1LL << 55) + i, i);
    const std::int64_t one = 1;
    std::map<std::pair<int, int>, std::vector<int>> before; // [sequence, layer]
    std::int64_t start = 0;
    for (int s = 0; s < int(handSteps().size()); ++s) {
        const HandStep& step = handSteps()[std::size_t(s)];
        const std::int64_t key = one << 25 | s;
        int tokens = int(step.fed.size());
        std::string tokenRows;
        for (const auto& [sequence, begins, first, count] : step.pieces) {
            sql += fmt::format("INSERT INTO prompt_piece VALUES ({},{},{},{});", key << 20 | sequence << 10, begins,
                               first, count);
            tokens += count;
            if (begins != 0)
                for (int layer = 0; layer < kHandLayers; ++layer) before.erase({sequence, layer});
        }
        // The last pieces of the three prompts give their first tokens.
        if (s == 2) tokenRows += fmt::format("INSERT INTO token VALUES ({},84,7,'t',NULL);", key << 20);
        if (s == 6) tokenRows += fmt::format("INSERT INTO token VALUES ({},32,7,'t',NULL);", key << 20 | 1 << 10);
        if (s == 9) tokenRows += fmt::format("INSERT INTO token VALUES ({},17,7,'t',NULL);", key << 20 | 1 << 10);
        int selected = 0, kept = 0, hits = 0, stepOpens = 0;
        bool keptKnown = true;
        std::string layers, selections;
        for (int layer = 0; layer < kHandLayers; ++layer) {
            int ofLayer = 0, keptOfLayer = 0, hitsOfLayer = 0;
            bool layerKnown = true;
            for (const auto& [sequence, fed] : step.fed) {
                const std::vector<int> blocks = handBlocks(s, layer, fed);
                const auto earlier = before.find({sequence, layer});
                std::string ids, hitBits;
                int common = 0, resident = 0, last = -1;
                unsigned bits = 0, origins = 0;
                for (std::size_t i = 0; i < blocks.size(); ++i) {
                    const bool again = earlier != before.end() &&
                                       std::count(earlier->second.begin(), earlier->second.end(), blocks[i]) > 0;
                    common += again;
                    const bool hit = again || i + 1 == blocks.size();
                    resident += hit;
                    bits |= unsigned(hit) << i;
                    origins |= (i == 0 ? 0u : 2u) << (2 * i);
                    ids += fmt::format("{:02x}", blocks[i] - last - 1);
                    last = blocks[i];
                }
                const bool opens = fed % kHandBlock == 0, known = earlier != before.end();
                stepOpens |= int(opens);
                selections +=
                    fmt::format("INSERT INTO selection VALUES ({},{},{},{},{},{},NULL,x'10{:02x}{}{:02x}{:02x}');",
                                (key << 10 | layer) << 20 | sequence << 10, int(opens), blocks.size(),
                                known ? std::to_string(common) : "NULL", resident, int(blocks.size()) - resident,
                                blocks.size(), ids, origins, bits);
                if (layer == 0)
                    tokenRows += fmt::format("INSERT INTO token VALUES ({},{},7,'t',NULL);", key << 20 | sequence << 10,
                                             fed + 1);
                ofLayer += int(blocks.size()), keptOfLayer += common, hitsOfLayer += resident;
                layerKnown &= known;
                before[{sequence, layer}] = blocks;
            }
            const int missed = ofLayer - hitsOfLayer;
            const std::int64_t half = step.ns / 4; // of a layer: attention and feed-forward
            layers += fmt::format("INSERT INTO layer_step VALUES ({},{}, 0,0,0,0,0,0,0,{},0,{}, {},{},{},{}, {},0,{},0,"
                                  " {},0,{},NULL);",
                                  key << 10 | layer, start + layer * 2 * half, half, half, ofLayer,
                                  ofLayer == 0 ? "0"
                                  : layerKnown ? std::to_string(keptOfLayer)
                                               : "NULL",
                                  hitsOfLayer, missed, missed, missed * 8192, missed * 100, missed * 100);
            selected += ofLayer, kept += keptOfLayer, hits += hitsOfLayer;
            keptKnown &= layerKnown;
        }
        const int missed = selected - hits;
        sql += fmt::format("INSERT INTO step VALUES ({},{},{},{}, {},{},0,0,0, {},{},{},{}, {},0,{},0, {},{});", key,
                           step.fed.empty() ? 0 : 1, tokens, stepOpens, start, step.ns, selected,
                           selected == 0 ? "0"
                           : keptKnown   ? std::to_string(kept)
                                         : "NULL",
                           hits, missed, missed, missed * 8192, missed * 100, missed * 100);
        sql += layers + selections + tokenRows;
        start += step.ns + 1000;
    }
    test::sql(path, sql + "COMMIT;", SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
}

} // namespace kvscope::test
