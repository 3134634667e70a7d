// Blocks from host memory, the ways there are, against the size of a block, against the type of its numbers and against
// the locality of the selection.
#include "bench/bench.h"
#include "bench/cuda/gpu.h"
#include "bench/settings.h"
#include "kernels/cuda/choice/select.h"
#include "kernels/cuda/transfer/gather.h"
#include "kernels/cuda/transfer/quantised_blocks.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <vector>

namespace kvscope::bench {
namespace {

using Json = nlohmann::ordered_json;
using Bf16 = __nv_bfloat16;

constexpr std::size_t kHostBytes = std::size_t(32) << 30;  // more than any cache between here and there
constexpr std::size_t kDeviceBytes = std::size_t(1) << 30; // slots
constexpr std::size_t kMoved = std::size_t(256) << 20;     // of a measurement against block size
constexpr std::size_t kMostMoves = kMoved / 4096;
constexpr std::size_t kMostWritten = 64;

/// A pool on the host, slots on the device, and lists of blocks to move between them.
class Blocks {
public:
    Blocks() : host_(kHostBytes, "the pool") {
        arena_.plan(slots_, kDeviceBytes / sizeof(Bf16), "slots");
        arena_.plan(moves_, kMostMoves, "lists");
        arena_.plan(counts_, 4, "lists");
        arena_.plan(newest_, kMostWritten * cuda::blockElements(64, 128), "blocks that are being written");
        arena_.take();
    }
    /// `moves` blocks of `bytes`, from shuffled places to slots in order. @return the list
    std::vector<cuda::BlockMove> choose(std::size_t moves, std::size_t bytes) {
        std::vector<cuda::BlockMove> list(moves);
        std::mt19937_64 random(3);
        for (std::size_t i = 0; i < moves; ++i)
            list[i] = {std::uint32_t(random() % (kHostBytes / bytes)), std::uint32_t(i)};
        cuda::check(cudaMemcpy(moves_, list.data(), moves * sizeof(cuda::BlockMove), cudaMemcpyHostToDevice),
                    "preparing a benchmark");
        const std::uint32_t counts[] = {std::uint32_t(moves), 0, 0, std::uint32_t(moves)};
        cuda::check(cudaMemcpy(counts_, counts, sizeof counts, cudaMemcpyHostToDevice), "preparing a benchmark");
        return list;
    }
    /// Blocks of `tokens` tokens of one KV head of 128 channels: 512 bytes a token.
    cuda::GatherArgs gather(int tokens) const {
        cuda::GatherArgs args;
        args.shape = {16, 1, 128, tokens};
        args.moves = {moves_, nullptr, counts_};
        args.store = static_cast<const Bf16*>(host_.data());
        args.storeOut = static_cast<Bf16*>(host_.data());
        args.pool = slots_;
        return args;
    }
    /// The same blocks the other way; of a type with scales at most kMostWritten.
    cuda::GatherArgs writeBack(int tokens) const {
        cuda::GatherArgs args = gather(tokens);
        args.moves = {nullptr, moves_, counts_ + 2};
        args.newest = newest_, args.slots = 1;
        return args;
    }
    char* host() const { return static_cast<char*>(host_.data()); }
    char* slots() const { return reinterpret_cast<char*>(slots_); }

private:
    PinnedMemory host_;
    DeviceArena arena_;
    Bf16 *slots_ = nullptr, *newest_ = nullptr;
    cuda::BlockMove* moves_ = nullptr;
    std::uint32_t* counts_ = nullptr;
};

double oneCallPerBlock(Gpu& gpu, const Blocks& blocks, const std::vector<cuda::BlockMove>& list, std::size_t bytes) {
    return gpu.seconds(
        [&] {
            for (std::size_t i = 0; i < list.size(); ++i)
                cuda::check(cudaMemcpyAsync(blocks.slots() + i * bytes, blocks.host() + list[i].store * bytes, bytes,
                                            cudaMemcpyHostToDevice, gpu.launch.stream),
                            "copying");
        },
        3);
}

/// One call for all blocks; 0 where the runtime lacks it.
double batchedCall(Gpu& gpu, const Blocks& blocks, const std::vector<cuda::BlockMove>& list, std::size_t bytes) {
#if CUDART_VERSION >= 13000
    std::vector<void*> to;
    std::vector<const void*> from;
    std::vector<std::size_t> sizes(list.size(), bytes);
    for (std::size_t i = 0; i < list.size(); ++i) {
        to.push_back(blocks.slots() + i * bytes);
        from.push_back(blocks.host() + list[i].store * bytes);
    }
    cudaMemcpyAttributes attributes = {};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    std::size_t first = 0;
    return gpu.seconds(
        [&] {
            cuda::check(cudaMemcpyBatchAsync(to.data(), from.data(), sizes.data(), list.size(), &attributes, &first, 1,
                                             gpu.launch.stream),
                        "copying a batch");
        },
        3);
#else
    (void)gpu, (void)blocks, (void)list, (void)bytes;
    return 0;
#endif
}

Json bySize(Gpu& gpu, Blocks& blocks, double copy, const Log& log) {
    Json out = Json::array();
    for (const int tokens : {8, 16, 32, 64, 128}) {
        const std::size_t bytes = std::size_t(tokens) * 512, moves = std::min(kMoved / bytes, kMostMoves);
        const std::vector<cuda::BlockMove> list = blocks.choose(moves, bytes);
        const cuda::GatherArgs args = blocks.gather(tokens);
        Json row{{"block_kib", double(bytes) / 1024}};
        std::string text = fmt::format("{:3.0f} KiB blocks, GB/s: gather", double(bytes) / 1024);
        for (const int ctas : {1, 2, 4, 8, 16}) {
            const double rate =
                double(moves * bytes) / gpu.seconds([&] { cuda::gatherBlocks(gpu.launch, args, ctas); }, 5);
            row[fmt::format("gather_{}_ctas_gb_per_s", ctas)] = rate * 1e-9;
            row[fmt::format("gather_{}_ctas_share_of_copy", ctas)] = rate / copy;
            text += fmt::format(" {:.1f} ({} CTAs)", rate * 1e-9, ctas);
        }
        const std::vector<cuda::BlockMove> some(list.begin(),
                                                list.begin() + std::min<std::ptrdiff_t>(4096, std::ssize(list)));
        const double each = double(some.size() * bytes) / oneCallPerBlock(gpu, blocks, some, bytes) * 1e-9;
        row["one_call_per_block_gb_per_s"] = each;
        text += fmt::format(", one call per block {:.2f}", each);
        if (const double time = batchedCall(gpu, blocks, some, bytes); time > 0) {
            row["batched_call_gb_per_s"] = double(some.size() * bytes) / time * 1e-9;
            text += fmt::format(", one batched call {:.2f}", double(some.size() * bytes) / time * 1e-9);
        }
        log(text);
        out.push_back(std::move(row));
    }
    return out;
}

/// Bytes that cross the link, for blocks of 64 tokens, 128 channels: all that a launch may have, and as many as a layer
/// of a decode step misses. Moves of quantised blocks count the bytes of their format.
Json byType(Gpu& gpu, Blocks& blocks, double copy, const Log& log) {
    constexpr int kTokens = 64, kDim = 128;
    Json out = Json::array();
    for (const KvType type : {KvType::BF16, KvType::INT8, KvType::FP8, KvType::INT4}) {
        const KvFormat format{type, kTokens, kDim, kDim, false};
        const auto bytes = std::size_t(format.blockBytes());
        const auto move = [&](const cuda::GatherArgs& args, int ctas) {
            if (type == KvType::BF16)
                cuda::gatherBlocks(gpu.launch, args, ctas);
            else
                cuda::gatherQuantised(gpu.launch, args, format, ctas);
        };
        const auto rate = [&](std::size_t moves, int ctas) {
            blocks.choose(moves, bytes);
            return double(moves * bytes) / gpu.seconds([&] { move(blocks.gather(kTokens), ctas); }, 9);
        };
        const int usual = 4;
        const std::size_t all = kMoved / (kTokens * kDim * 4);
        Json row{{"type", nameOf(type)}, {"block_bytes", bytes}};
        std::string text = fmt::format("{:4} blocks of {:5} bytes, GB/s:", nameOf(type), bytes);
        for (const int ctas : {2, 4, 8, 16, 32, 64}) {
            const double got = rate(all, ctas);
            row[fmt::format("gather_{}_ctas_gb_per_s", ctas)] = got * 1e-9;
            row[fmt::format("gather_{}_ctas_share_of_copy", ctas)] = got / copy;
            text += fmt::format(" {:.1f} = {:.3f} of the copy ({} CTAs)", got * 1e-9, got / copy, ctas);
        }
        for (const std::size_t moves : {32, 128, 512}) {
            const double got = rate(moves, usual);
            row[fmt::format("gather_of_{}_blocks_gb_per_s", moves)] = got * 1e-9;
            text += fmt::format(", {:.1f} ({} blocks, {} CTAs)", got * 1e-9, moves, usual);
        }
        for (const std::size_t moves : {std::size_t(1), std::size_t(8), kMostWritten}) {
            blocks.choose(moves, bytes);
            const double us = gpu.seconds([&] { move(blocks.writeBack(kTokens), usual); }, 9) * 1e6;
            row[fmt::format("write_back_of_{}_blocks_us", moves)] = us;
            text += fmt::format(", {} written back in {:.1f} us", moves, us);
        }
        log(text);
        out.push_back(std::move(row));
    }
    return out;
}

/// The paper's setting: 64 sequences, 2 KV heads, 64 of 64-token blocks selected, a share of them new.
Json byLocality(Gpu& gpu, Blocks& blocks, const Log& log) {
    Json out = Json::array();
    constexpr int kTokens = 64, kSelected = 64 * 2 * 64;
    for (const double locality : {0.5, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99}) {
        const std::size_t bytes = std::size_t(kTokens) * 512;
        const std::size_t moves = std::max<std::size_t>(1, std::size_t((1 - locality) * kSelected + 0.5));
        const std::vector<cuda::BlockMove> list = blocks.choose(moves, bytes);
        const cuda::GatherArgs args = blocks.gather(kTokens);
        const auto rate = [&](double time) { return double(moves * bytes) / time * 1e-9; };
        Json row{{"locality", locality}, {"blocks", moves}};
        row["gather_4_ctas_gb_per_s"] = rate(gpu.seconds([&] { cuda::gatherBlocks(gpu.launch, args, 4); }, 9));
        row["one_call_per_block_gb_per_s"] = rate(oneCallPerBlock(gpu, blocks, list, bytes));
        if (const double time = batchedCall(gpu, blocks, list, bytes); time > 0)
            row["batched_call_gb_per_s"] = rate(time);
        log(fmt::format("locality {:.2f}: {}", locality, row.dump()));
        out.push_back(std::move(row));
    }
    return out;
}

} // namespace

Json transfers(const Settings& given, const Log& log) {
    const SettingsReader settings(given, {"only"});
    const std::string only = settings.text("only", "");
    const std::vector<std::string> parts{"sizes", "types", "locality"};
    if (!only.empty() && std::find(parts.begin(), parts.end(), only) == parts.end())
        throw Error(ErrorKind::BadInput, fmt::format("transfers has no part {}", only),
                    fmt::format("give only={}", fmt::join(parts, ", ")));
    Gpu gpu;
    const double copy = gpu.copyBytesPerSecond();
    log(fmt::format("pinned copy {:.1f} GB/s", copy * 1e-9));
    Blocks blocks;
    Json out{{"copy_gb_per_s", copy * 1e-9}};
    const auto wanted = [&](const char* part) { return only.empty() || only == part; };
    if (wanted("sizes")) out["by_block_size"] = bySize(gpu, blocks, copy, log);
    if (wanted("types")) out["by_type"] = byType(gpu, blocks, copy, log);
    if (wanted("locality")) out["by_locality"] = byLocality(gpu, blocks, log);
    return out;
}

} // namespace kvscope::bench
