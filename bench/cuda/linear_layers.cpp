#include "bench/cuda/linear_layers.h"

#include "bench/child_program.h"
#include "core/cuda/device_products.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <limits>
#include <map>
#include <memory>
#include <sstream>
#include <utility>
#include <vector>

namespace kvscope::bench {
namespace {

using Json = nlohmann::ordered_json;
using enum ProductFinish;

constexpr double kNever = std::numeric_limits<double>::infinity(), kMust = 0.98;
constexpr int kCandidates = 8;

struct Layer {
    const char* name;
    ProductShape shape;
};
constexpr Layer kLayers[] = {
    {"8b_qkv", {4608, 4096, Normed}},     {"8b_o", {4096, 4096, Plain}},        {"8b_gate_up", {32768, 4096, Gated}},
    {"8b_down", {4096, 16384, Plain}},    {"3b_qkv", {4608, 2560, Normed}},     {"3b_o", {2560, 4096, Plain}},
    {"3b_gate_up", {20480, 2560, Gated}}, {"3b_down", {2560, 10240, Plain}},    {"1b_qkv", {2560, 2048, Normed}},
    {"1b_o", {2048, 2048, Plain}},        {"1b_gate_up", {12288, 2048, Gated}}, {"1b_down", {2048, 6144, Plain}},
    {"tiny_qkv", {640, 384, Normed}},     {"tiny_o", {384, 384, Plain}},        {"tiny_gate_up", {2048, 384, Gated}},
    {"tiny_down", {384, 1024, Plain}},    {"lm_head", {73448, 4096, Normed}},
};
/// The numbers of the buckets, and those right behind the own kernels' ends.
constexpr int kInputs[] = {1, 2, 4, 8, 9, 12, 16, 17, 24, 32, 48, 64, 96, 128, 192, 256};

/// Products without what is around them.
class Alone {
public:
    explicit Alone(ProductTimer& timer) : timer_(timer), library_(cuda::MatrixLibrary::load()) {
        if (!library_) return;
        arena_.plan(room_, cuda::MatrixLibrary::kWorkspaceBytes, "cuBLASLt's work space");
        arena_.take();
        if (!library_->open(room_)) library_.reset();
    }
    /// The library's first proposal for just so many inputs.
    double first(int inputs) { return library_ ? libraryTime(inputs, {0, true}) : kNever; }
    double chosen(int inputs, ProductChoice choice) {
        if (choice.kernel == ProductKernel::Library) return libraryTime(inputs, {choice.candidate, false});
        timer_.linear().force(choice);
        const cuda::LinearOutput to = output();
        const double time = timer_.secondsOf(
            [&](int copy) { timer_.linear().run(timer_.job().weights(copy), timer_.job().halfInputs(), inputs, to); });
        timer_.linear().force({});
        return time;
    }

private:
    cuda::LinearOutput output() const { return timer_.job().plainOutput(); }
    double libraryTime(int inputs, cuda::MatrixLibrary::Algorithm algorithm) {
        const cuda::LinearOutput to = output();
        __nv_bfloat16* const half = timer_.job().output().hidden; // of gates the library writes bf16
        return timer_.secondsOf([&](int copy) {
            const cuda::DeviceMatrix w = timer_.job().weights(copy);
            library_->multiply(timer_.stream(), w, timer_.job().halfInputs(), inputs, to, half, w.rows, algorithm);
        });
    }

    ProductTimer& timer_;
    DeviceArena arena_;
    std::byte* room_ = nullptr;
    std::unique_ptr<cuda::MatrixLibrary> library_;
};

/// Seconds of torch.mm by layer and inputs; none where it cannot run, and then the log says so.
using PeerTimes = std::map<std::pair<std::string, int>, double>;

PeerTimes timesOfTorch(const LinearSettings& settings, const Log& log) {
    PeerTimes out;
    if (settings.peer.empty()) return out;
    ChildProgram peer({"/usr/bin/env", settings.python, settings.peer, "--layer=" + settings.layer});
    const int status = peer.wait();
    std::istringstream text(peer.output());
    for (std::string line; std::getline(text, line);)
        if (const Json row = Json::parse(line, nullptr, false); row.is_object() && row.contains("mm_us"))
            out[{row.value("layer", ""), row.value("inputs", 0)}] = row["mm_us"].get<double>() * 1e-6;
    if (status != 0 || out.empty()) log(fmt::format("no torch.mm: {} ended with status {}", settings.peer, status));
    return out;
}

Json microseconds(double seconds) { return std::isfinite(seconds) ? Json(seconds * 1e6) : Json(); }

/// The times of one layer for one number of inputs, and the choice that was the fastest.
struct Row {
    double chain = kNever, own = kNever, library = kNever; // the table's choice, the best own one, the best of cuBLASLt
    ProductChoice best;
};

Row timeChains(ProductTimer& timer, const ProductTable& table, const ProductShape& shape, int inputs) {
    Row row;
    const ProductChoice chosen = table.choice(shape, inputs);
    row.best = chosen;
    for (const ProductChoice choice : possibleChoices(timer.machine(), inputs, kCandidates)) {
        const double time = timer.seconds(inputs, choice);
        if (choice == chosen) row.chain = time;
        double& best = choice.kernel == ProductKernel::Library ? row.library : row.own;
        if (time < std::min(row.own, row.library)) row.best = choice;
        best = std::min(best, time);
    }
    return row;
}

void measure(const Layer& layer, double readRate, const PeerTimes& peer, Json& out, int& misses, const Log& log) {
    ProductTimer timer(layer.shape, kInputs[std::size(kInputs) - 1]);
    const ProductTable table = *loadProducts(timer.machine(), productSource()).table;
    Alone alone(timer);
    std::vector<std::string> words;
    for (const int n : kInputs) {
        const ProductChoice chosen = table.choice(layer.shape, n);
        const Row row = timeChains(timer, table, layer.shape, n);
        const auto mm = peer.find({layer.name, n});
        const double first = alone.first(n), own = alone.chosen(n, chosen),
                     torch = mm != peer.end() ? mm->second : kNever, ratio = std::min(first, torch) / own;
        const double share = double(timer.job().weightBytes()) / readRate / row.chain;
        const bool missed = std::isfinite(ratio) && ratio < kMust;
        misses += missed;
        out[fmt::format("linear_{}_inputs_{}_share_of_read", layer.name, n)] = share;
        out["linear"].push_back({{"layer", layer.name},
                                 {"rows", layer.shape.rows},
                                 {"cols", layer.shape.cols},
                                 {"inputs", n},
                                 {"choice", wordOf(chosen)},
                                 {"alone_us", microseconds(own)},
                                 {"cublaslt_first_us", microseconds(first)},
                                 {"torch_mm_us", microseconds(torch)},
                                 {"faster_over_ours", std::isfinite(ratio) ? Json(ratio) : Json()},
                                 {"missed", missed},
                                 {"chain_us", microseconds(row.chain)},
                                 {"own_chain_us", microseconds(row.own)},
                                 {"library_chain_us", microseconds(row.library)},
                                 {"fastest", wordOf(row.best)}});
        log(fmt::format("linear {:12} {:3} inputs, {:5}: alone {:7.2f} us, cuBLASLt's first {:7.2f}, torch.mm {:7.2f}, "
                        "the faster {:.3f}{}; chain "
                        "{:7.2f} us ({:.3f} of the read probe), own {:7.2f}, library {:7.2f}, fastest {}",
                        layer.name, n, wordOf(chosen), own * 1e6, first * 1e6, torch * 1e6, ratio,
                        missed ? " MISSED" : "", row.chain * 1e6, share, row.own * 1e6, row.library * 1e6,
                        wordOf(row.best)));
    }
    for (const ProductChoice choice :
         measureProduct(table, layer.shape, kCandidates,
                        [&](const ProductShape&, int n, ProductChoice choice) { return timer.seconds(n, choice); }))
        words.push_back(wordOf(choice));
    const ProductMachine& machine = timer.machine();
    const std::string finish = layer.shape.finish == Plain    ? "Plain"
                               : layer.shape.finish == Normed ? "Normed"
                                                              : "Gated";
    const std::string line =
        fmt::format(R"({{"{}", {}, {}, {{{}, {}, ProductFinish::{}}}, "{}"}},)", machine.gpu, machine.capability,
                    machine.library, layer.shape.rows, layer.shape.cols, finish, fmt::join(words, " "));
    out["table"].push_back(line);
}

} // namespace

Json linearLayers(double readRate, const LinearSettings& settings, const Log& log) {
    Json out;
    int misses = 0;
    const PeerTimes peer = timesOfTorch(settings, log);
    out["linear"] = Json::array();
    out["table"] = Json::array();
    for (const Layer& layer : kLayers)
        if (std::string_view(layer.name).starts_with(settings.layer)) measure(layer, readRate, peer, out, misses, log);
    out["linear_missed"] = misses;
    log(fmt::format(
        "{} products are below {} of the faster of cuBLASLt's first proposal and torch.mm; the fastest choices, for "
        "kernels/product_table.cpp:\n{}",
        misses, kMust, fmt::join(out["table"].get<std::vector<std::string>>(), "\n")));
    return out;
}

} // namespace kvscope::bench
