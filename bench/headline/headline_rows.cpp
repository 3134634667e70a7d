#include "bench/headline/headline_rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

namespace kvscope::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array kPromptLengths{std::pair{4096, "4K"}, std::pair{16384, "16K"}, std::pair{32768, "32K"}};
constexpr const char* kNoRoom = "does not fit";

// NOSA, table 2, NOSI, 16K, tokens/s on an A800, by batch.
constexpr std::array kPaper16k{std::pair{16, 743.18}, std::pair{64, 1630.80}, std::pair{128, 1961.17}};

/// The line of a peer for a prompt of so many tokens, or null.
const Json* lineOf(const PeerLines& peer, int tokens) {
    const auto found = std::find_if(peer.begin(), peer.end(), [&](const Json& line) {
        return line.is_object() && line.value("tokens", 0) == tokens;
    });
    return found == peer.end() ? nullptr : &*found;
}

/// The smallest share of the read probe among layers, by the number of inputs.
Json slowestLayers(const Json& kernels, const std::vector<std::string>& layers) {
    Json out;
    for (const int inputs : {1, 2, 4, 8, 16, 32, 64}) {
        double least = 1e30;
        for (const std::string& layer : layers)
            least = std::min(least,
                             kernels.at(fmt::format("linear_{}_inputs_{}_share_of_read", layer, inputs)).get<double>());
        out[fmt::format("{}", inputs)] = least;
    }
    return out;
}

/// Values of the rows that `fits` chooses, in the order in which they were measured.
template <class Fits> std::vector<double> valuesOf(const Json& decode, const char* key, const Fits& fits) {
    std::vector<double> out;
    for (const Json& row : decode.at("rows"))
        if (row.contains(key) && fits(row)) out.push_back(row[key].get<double>());
    return out;
}

/// The quotients of two lists, turn by turn.
std::vector<double> turnByTurn(const std::vector<double>& a, const std::vector<double>& b) {
    std::vector<double> out;
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) out.push_back(a[i] / b[i]);
    return out;
}

/// Turns of an offloaded step of one batch, with its misses and where every block is hit.
struct OffloadedSteps {
    std::vector<double> step, link, tokens;    // with the misses
    std::vector<double> computing, linkOfHits; // step and link where nothing misses

    OffloadedSteps(const Json& decode, int batch) {
        const auto of = [&](bool allHit, const char* key) {
            return valuesOf(decode, key, [&](const Json& row) {
                return row.at("batch") == batch && (row.at("selection") == "planted:1") == allHit;
            });
        };
        step = of(false, "step_ms"), link = of(false, "link_floor_ms"), tokens = of(false, "tokens_per_s");
        computing = of(true, "step_ms"), linkOfHits = of(true, "link_floor_ms");
    }
    bool fit() const { return !step.empty() && computing.size() == step.size(); }
};

} // namespace

Json promptAttentionRows(const Json& kernels, const PeerLines& peer) {
    Json out;
    for (const auto& [tokens, name] : kPromptLengths) {
        const double rate = kernels.at(fmt::format("prefill_attention_{}k_tflops", tokens / 1024)).get<double>();
        out["prefill-attention-rate"][name] = rate;
        if (const Json* line = lineOf(peer, tokens))
            out["prefill-attention"][name] = rate / line->at("cudnn_tflops").get<double>();
    }
    return out;
}

Json wholePromptRows(const Json& prompts, const PeerLines& peer) {
    Json out;
    for (const Json& prompt : prompts.at("prompts"))
        for (const auto& [tokens, name] : kPromptLengths) {
            if (prompt.at("tokens") != tokens) continue;
            const double ms = prompt.at("prefill_ms").get<double>();
            out["whole-prompts-time"][name] = ms;
            if (const Json* line = lineOf(peer, tokens); line != nullptr && line->contains("transformers_ms"))
                out["whole-prompts"][name] = line->at("transformers_ms").get<double>() / ms;
        }
    return out;
}

Json firstPromptRows(const Json& measured) {
    Json out;
    for (const Json& round : measured.at("rounds_rehearsed"))
        out["first-prompt"][""].push_back(round.at("first_minus_second_ms"));
    return out;
}

Json projectionRows(const Json& kernels) {
    return {{"projections", slowestLayers(kernels, {"8b_qkv", "8b_o", "8b_gate_up", "8b_down"})},
            {"projections-1b", slowestLayers(kernels, {"1b_qkv", "1b_gate_up", "1b_down"})}};
}

Json selectionRows(const Json& kernels) {
    Json out;
    for (const auto& [blocks, name] : {std::pair{256, "256"}, std::pair{2048, "2,048"}})
        for (const int heads : {2, 8, 32})
            out["selection"][fmt::format("{} x {}", heads, name)] =
                kernels.at(fmt::format("select_rows_{}_blocks_{}_us_above_empty_node", heads, blocks));
    return out;
}

Json sparseAttentionRows(const Json& kernels) {
    Json out;
    for (const int batch : {16, 64})
        out["sparse-attention"][fmt::format("batch {}", batch)] =
            kernels.at(fmt::format("attention_batch_{}_share_of_read", batch));
    return out;
}

Json batchOneRows(const Json& decode) {
    Json out;
    for (const auto& [shape, name] :
         {std::pair{"nosa-8b", "8B"}, std::pair{"nosa-3b", "3B"}, std::pair{"nosa-1b", "1B"}}) {
        const auto ofShape = [shape = shape](const Json& row) { return row.at("shape") == shape; };
        out["batch-1"][name] = valuesOf(decode, "floor_over_step", ofShape);
        out["batch-1-layer"][name] = valuesOf(decode, "us_a_layer_above_floor", ofShape);
    }
    return out;
}

Json batchCurveRows(const Json& decode) {
    Json out;
    for (const Json& row : decode.at("rows")) {
        const std::string id = fmt::format("batch-curve-{}k", row.at("context").get<int>() / 1024),
                          name = fmt::format("batch {}", row.at("batch").get<int>());
        const bool measured = row.contains("step_ms");
        for (const auto& [to, key] : {std::pair{id, "step_ms"}, std::pair{id + "-layer", "us_a_layer_above_floor"}}) {
            if (measured)
                out[to][name].push_back(row.at(key));
            else
                out[to][name] = kNoRoom;
        }
    }
    return out;
}

Json residentRows(const Json& decode) {
    const auto of = [&](int context, const char* key) {
        return valuesOf(decode, key, [&](const Json& row) { return row.at("context") == context; });
    };
    const std::vector<double> step = of(16384, "step_ms");
    return {
        {"resident-nosa",
         {{"16K", turnByTurn(step, of(16384, "floor_ms"))}, {"96K / 16K", turnByTurn(of(98304, "step_ms"), step)}}}};
}

Json offloadedRows(const Json& decode) {
    Json out;
    for (const auto& [batch, paper] : kPaper16k) {
        const std::string batchName = fmt::format("batch {}", batch), paperName = fmt::format("EB {}", batch);
        const OffloadedSteps steps(decode, batch);
        if (!steps.fit()) {
            out["offloaded-step"][batchName] = kNoRoom;
            out["paper-16k"][paperName] = kNoRoom;
            continue;
        }
        for (std::size_t i = 0; i < steps.step.size(); ++i) {
            const double link = steps.link[i] - steps.linkOfHits[i];
            out["offloaded-step"][batchName].push_back(steps.step[i] / (steps.computing[i] + link));
            out["paper-16k"][paperName].push_back(steps.tokens[i] / paper);
        }
    }
    return out;
}

Json aheadRows(const Json& decode) {
    Json out;
    for (const auto& [batch, paper] : kPaper16k) {
        const std::string batchName = fmt::format("batch {}", batch), paperName = fmt::format("EB {}", batch);
        const OffloadedSteps steps(decode, batch);
        if (!steps.fit()) {
            out["ahead-step"][batchName] = kNoRoom;
            out["paper-16k-ahead"][paperName] = kNoRoom;
            continue;
        }
        for (std::size_t i = 0; i < steps.step.size(); ++i) {
            out["ahead-step"][batchName].push_back(steps.step[i] / std::max(steps.computing[i], steps.link[i]));
            out["paper-16k-ahead"][paperName].push_back(steps.tokens[i] / paper);
        }
    }
    return out;
}

Json halvesRows(const Json& decode) {
    const auto those = [&](bool halves) {
        Json out{{"rows", Json::array()}};
        for (const Json& row : decode.at("rows"))
            if (row.contains("parameters") == halves) out["rows"].push_back(row);
        return out;
    };
    Json out;
    for (const int batch : {64, 128}) {
        const std::string name = fmt::format("EB {}", batch);
        const OffloadedSteps demand(those(false), batch), halves(those(true), batch);
        if (!demand.fit() || halves.step.size() != demand.step.size()) {
            out["halves"][name] = out["halves-step"][name] = kNoRoom;
            continue;
        }
        out["halves"][name] = turnByTurn(demand.step, halves.step);
        for (std::size_t i = 0; i < halves.step.size(); ++i)
            out["halves-step"][name].push_back(halves.step[i] / std::max(demand.computing[i], halves.link[i]));
    }
    return out;
}

Json sameMemoryRows(const Json& decode) {
    const auto tokens = [&](std::string_view note) {
        return valuesOf(decode, "tokens_per_s", [&](const Json& row) { return row.value("note", "") == note; });
    };
    const auto orNoRoom = [](const std::vector<double>& values) {
        return values.empty() ? Json(kNoRoom) : Json(values);
    };
    Json ratios, rates;
    for (const auto& [name, offloaded, resident] :
         {std::tuple{"EB 64", "offloaded", "full"},
          {"EB 64, a layer ahead", "ahead", "full"},
          {"8 bits on both sides", "offloaded, 8 bits", "full, 8 bits"},
          {"8 bits on both sides, a layer ahead", "ahead, 8 bits", "full, 8 bits"}})
        ratios[name] = orNoRoom(turnByTurn(tokens(offloaded), tokens(resident)));
    for (const char* note : {"full", "offloaded", "ahead", "full, 8 bits", "offloaded, 8 bits", "ahead, 8 bits"})
        rates[note] = orNoRoom(tokens(note));
    return {{"full-at-same-memory", std::move(ratios)},
            {"same-memory-rate", std::move(rates)},
            {"over-infllmv2", {{"", orNoRoom(turnByTurn(tokens("nosa, 16K"), tokens("infllmv2, 16K")))}}}};
}

Json longAnswerRows(const Json& decode) {
    return {
        {"long-answer", {{"", valuesOf(decode, "tokens_200_to_1200_over_1_to_4", [](const Json&) { return true; })}}}};
}

Json exposureRows(const Json& decode) {
    Json values;
    for (const Json& cell : decode.at("exposure")) {
        const char* name = cell.at("batch") == 64 ? "batch 64" : "batch 4 and 16";
        values[name].push_back(100 * std::abs(cell.at("reported_over_ablation").get<double>() - 1));
    }
    return {{"exposed-ablation", std::move(values)}};
}

Json hiddenTransferRows(const Json& decode) {
    Json values;
    for (const Json& cell : decode.at("lookahead")) {
        values[""].push_back(cell.at("ahead_over_waiting"));
        values[cell.at("batch") == 16 ? "batch 16" : "up to batch 8"].push_back(
            100 * cell.at("exposed_over_waiting").get<double>());
    }
    return {{"ahead", std::move(values)}};
}

Json operatorRows(const Json& decode) {
    Json values;
    for (const Json& cell : decode.at("operators")) {
        values["full attention"].push_back(cell.at("over_full"));
        values["Double Sparsity"].push_back(cell.at("over_double-sparsity"));
    }
    return {{"asynctls", std::move(values)}};
}

Json quantisedBlockRows(const Json& decode) {
    const auto of = [&](std::string_view type, const char* key) {
        return valuesOf(decode, key, [&](const Json& row) { return row.value("kv_type", "bf16") == type; });
    };
    Json values; // first the bytes, which have one goal, then the speeds
    for (const auto& [type, name] : {std::pair{"int8", "8 bits"}, std::pair{"int4", "4 bits"}})
        values[name] = turnByTurn(of(type, "h2d_mb_per_step"), of("bf16", "h2d_mb_per_step"));
    for (const auto& [type, name] : {std::pair{"int8", "8 bits, tokens/s"}, std::pair{"int4", "4 bits, tokens/s"}})
        values[name] = turnByTurn(of(type, "tokens_per_s"), of("bf16", "tokens_per_s"));
    return {{"quantised-blocks", std::move(values)}};
}

Json recordingRows(const Json& decode) {
    Json out;
    for (const int batch : {1, 16}) {
        const auto of = [&](const std::string& what) {
            return valuesOf(decode, "step_ms", [&](const Json& row) {
                const std::string note = row.value("note", "");
                return row.at("batch") == batch && (note == what || note == what + " again");
            });
        };
        const std::string name = fmt::format("batch {}", batch);
        out["recording"][name] = turnByTurn(of("off"), of("selections"));
        out["cupti"][name] = turnByTurn(of("off"), of("kernels"));
    }
    return out;
}

Json gatherRows(const Json& moved) {
    constexpr const char* kName = "4 thread blocks";
    Json out;
    for (const Json& row : moved.at("by_block_size")) {
        if (row.at("block_kib") != 16.0) continue;
        out["gather"][kName] = row.at("gather_4_ctas_share_of_copy");
        out["gather-over-calls"][kName] =
            row.at("gather_4_ctas_gb_per_s").get<double>() / row.at("one_call_per_block_gb_per_s").get<double>();
    }
    return out;
}

Json blockDiffusionRows(const Json& layer) {
    const Json& cell = layer.at("block_16_prefix_65536");
    Json values;
    for (const auto& [name, key] :
         {std::pair{"dense / LoSA", "dense_over_losa"}, std::pair{"Quest / LoSA", "quest_over_losa"}})
        for (const int budget : {128, 256, 512})
            values[fmt::format("{}, {}", name, budget)] = cell.at(fmt::format("budget_{}", budget)).at(key);
    values["dense / floor"] = cell.at("dense_over_floor");
    return {{"block-diffusion", std::move(values)}};
}

Json planRows(const Json& served) {
    double median = 0, p99 = 0;
    for (const Json& server : served.at("plans").at("servers")) {
        median = std::max(median, server.at("plan_p50_us").at("value").get<double>());
        p99 = std::max(p99, server.at("plan_p99_us").at("value").get<double>());
    }
    return {{"plans", {{"median", median}, {"P99", p99}}}};
}

Json viewRows(const Json& timeline, const Json& heatmap, const Json& live) {
    double frame = 0; // of the slowest aggregate
    for (const auto& [name, value] : heatmap.at("heatmap").items())
        if (value.is_object() && value.contains("median_ms")) frame = std::max(frame, value["median_ms"].get<double>());
    return {{"views", {{"timeline", timeline.at("frame_median_ms")}, {"heatmap", frame}}},
            {"live-views", {{"", live.at("one_window").at("share_of_headless_median")}}}};
}

Json llamaRows(const Json& peer) {
    return {{"llama-cpp", {{"prompt", peer.at("prompt")}, {"decoding", peer.at("decode")}}}};
}

} // namespace kvscope::bench
