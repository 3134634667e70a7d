// The headline rows of what benchmarks and peers have measured: {id of the row: {what a value is of: value}}, with the
// ids and names of bench/results/index.json. A value is a number, the list of a benchmark's own turns, or a text where
// there is none.
#pragma once

#include <nlohmann/json.hpp>

#include <vector>

namespace kvscope::bench {

/// Lines that a peer has printed; empty where it could not run, and then rows that are held against it are left out.
using PeerLines = std::vector<nlohmann::ordered_json>;

/// kernels: of gpu-kernels, only=prefill; peer: of attention_torch.py.
nlohmann::ordered_json promptAttentionRows(const nlohmann::ordered_json& kernels, const PeerLines& peer);
/// prompts: of prefill; peer: of prefill_torch.py, which leaves its library out where that is not installed.
nlohmann::ordered_json wholePromptRows(const nlohmann::ordered_json& prompts, const PeerLines& peer);
/// measured: of first-prompt, as the product is: with a rehearsal.
nlohmann::ordered_json firstPromptRows(const nlohmann::ordered_json& measured);
/// kernels: of gpu-kernels, only=linear.
nlohmann::ordered_json projectionRows(const nlohmann::ordered_json& kernels);
/// kernels: of gpu-kernels, only=select.
nlohmann::ordered_json selectionRows(const nlohmann::ordered_json& kernels);
/// kernels: of gpu-kernels, only=attention.
nlohmann::ordered_json sparseAttentionRows(const nlohmann::ordered_json& kernels);
/// decode: of decode, grid=one.
nlohmann::ordered_json batchOneRows(const nlohmann::ordered_json& decode);
/// decode: of decode, grid=batches, of one context.
nlohmann::ordered_json batchCurveRows(const nlohmann::ordered_json& decode);
/// decode: of decode, grid=contexts.
nlohmann::ordered_json residentRows(const nlohmann::ordered_json& decode);
/// decode: of decode, grid=offloaded, with one round or more.
nlohmann::ordered_json offloadedRows(const nlohmann::ordered_json& decode);
/// decode: of decode, grid=ahead.
nlohmann::ordered_json aheadRows(const nlohmann::ordered_json& decode);
/// decode: of decode, grid=halves.
nlohmann::ordered_json halvesRows(const nlohmann::ordered_json& decode);
/// decode: of decode, grid=same-memory.
nlohmann::ordered_json sameMemoryRows(const nlohmann::ordered_json& decode);
/// decode: of decode, grid=long.
nlohmann::ordered_json longAnswerRows(const nlohmann::ordered_json& decode);
/// decode: of decode, grid=exposure.
nlohmann::ordered_json exposureRows(const nlohmann::ordered_json& decode);
/// decode: of decode, grid=hidden-transfers.
nlohmann::ordered_json hiddenTransferRows(const nlohmann::ordered_json& decode);
/// decode: of decode, grid=operators.
nlohmann::ordered_json operatorRows(const nlohmann::ordered_json& decode);
/// decode: of decode, grid=kv-types.
nlohmann::ordered_json quantisedBlockRows(const nlohmann::ordered_json& decode);
/// decode: of decode, grid=recorded.
nlohmann::ordered_json recordingRows(const nlohmann::ordered_json& decode);
/// moved: of transfers.
nlohmann::ordered_json gatherRows(const nlohmann::ordered_json& moved);
/// layer: of losa-attention, block=16, prefix=65536.
nlohmann::ordered_json blockDiffusionRows(const nlohmann::ordered_json& layer);
/// served: of serving, only=plans.
nlohmann::ordered_json planRows(const nlohmann::ordered_json& served);
/// timeline, heatmap, live: of ui-timeline, ui-heatmap and ui-live.
nlohmann::ordered_json viewRows(const nlohmann::ordered_json& timeline, const nlohmann::ordered_json& heatmap,
                                const nlohmann::ordered_json& live);
/// peer: the last line of beside_llama_cpp.py --json.
nlohmann::ordered_json llamaRows(const nlohmann::ordered_json& peer);

} // namespace kvscope::bench
