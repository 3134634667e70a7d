#include "kernels/product_table.h"

#include "base/error.h"
#include "base/json_reading.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <utility>

namespace kvscope {
namespace {

constexpr int kMostCandidate = 15;
constexpr double kWorthChanging = 0.98;

/// Choices in the order of kProductInputs, as measured on a GPU with a version of cuBLASLt.
struct BuiltIn {
    const char* gpu;
    int capability, library;
    ProductShape shape;
    const char* words;
};

/// `kvscope-cli bench gpu-kernels --set only=linear` prints lines of this table for its GPU. These are from
/// bench/results/2026-11-30-h200-products.md: the matrices of the shapes 8B, 3B and 1B, and an output head.
constexpr BuiltIn kBuiltIn[] = {
    // inputs: 1 2 4 8 12 16 24 32 48 64 96 128 192 256
    {"NVIDIA H200",
     90,
     130100,
     {4608, 4096, ProductFinish::Normed},
     "one rows rows rows lib lib lib lib lib lib lib lib lib4 lib"},
    {"NVIDIA H200",
     90,
     130100,
     {4096, 4096, ProductFinish::Plain},
     "one rows rows rows tiles tiles lib2 lib lib2 lib lib3 lib1 lib1 lib2"},
    {"NVIDIA H200",
     90,
     130100,
     {32768, 4096, ProductFinish::Gated},
     "one rows rows rows tiles lib lib lib lib lib lib lib lib1 lib"},
    {"NVIDIA H200",
     90,
     130100,
     {4096, 16384, ProductFinish::Plain},
     "one rows rows rows tiles lib lib1 lib lib1 lib4 lib lib lib2 lib"},
    {"NVIDIA H200",
     90,
     130100,
     {4608, 2560, ProductFinish::Normed},
     "one rows rows rows lib lib lib lib lib lib3 lib1 lib lib lib1"},
    {"NVIDIA H200",
     90,
     130100,
     {2560, 4096, ProductFinish::Plain},
     "one rows rows rows tiles tiles lib lib2 lib1 lib1 lib lib lib lib"},
    {"NVIDIA H200",
     90,
     130100,
     {20480, 2560, ProductFinish::Gated},
     "one rows rows tiles tiles tiles lib1 lib1 lib2 lib lib lib lib lib1"},
    {"NVIDIA H200",
     90,
     130100,
     {2560, 10240, ProductFinish::Plain},
     "one rows rows tiles tiles tiles lib lib lib lib lib lib lib1 lib1"},
    {"NVIDIA H200",
     90,
     130100,
     {2560, 2048, ProductFinish::Normed},
     "one rows rows rows tiles tiles lib2 lib lib lib1 lib lib lib lib1"},
    {"NVIDIA H200",
     90,
     130100,
     {2048, 2048, ProductFinish::Plain},
     "one rows rows rows tiles tiles lib lib lib lib2 lib1 lib1 lib lib"},
    {"NVIDIA H200",
     90,
     130100,
     {12288, 2048, ProductFinish::Gated},
     "one rows rows rows tiles tiles lib4 lib2 lib1 lib1 lib lib5 lib lib"},
    {"NVIDIA H200",
     90,
     130100,
     {2048, 6144, ProductFinish::Plain},
     "one rows rows rows tiles tiles lib3 lib1 lib4 lib1 lib lib1 lib lib"},
    {"NVIDIA H200",
     90,
     130100,
     {73448, 4096, ProductFinish::Normed},
     "one rows rows rows lib5 lib2 lib lib lib lib lib lib4 lib lib4"},
};

/// The rule of the machines that nobody has measured.
constexpr int kMostFewRows = 8, kMostTiles = 16;

bool fits(ProductChoice choice, int inputs) {
    switch (choice.kernel) {
    case ProductKernel::OneInput:
        return inputs == 1;
    case ProductKernel::FewRows:
        return inputs <= kMostFewRows;
    case ProductKernel::Tiles:
        return inputs <= kMostTiles;
    default:
        return true;
    }
}

std::optional<ProductTable::Choices> choicesOf(const std::vector<std::string_view>& words) {
    ProductTable::Choices out{};
    if (words.size() != out.size()) return std::nullopt;
    for (std::size_t i = 0; i < out.size(); ++i) {
        const auto choice = choiceOf(words[i]);
        if (!choice || !fits(*choice, kProductInputs[i])) return std::nullopt;
        out[i] = *choice;
    }
    return out;
}

std::vector<std::string_view> wordsOf(std::string_view text) {
    std::vector<std::string_view> out;
    while (!text.empty()) {
        const std::size_t end = std::min(text.find(' '), text.size());
        out.push_back(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return out;
}

std::string joined(const ProductTable::Choices& choices) {
    std::string out;
    for (const ProductChoice choice : choices) out += (out.empty() ? "" : " ") + wordOf(choice);
    return out;
}

std::optional<ProductShape> shapeOf(const nlohmann::json& row) {
    const auto &rows = member(row, "rows"), &cols = member(row, "cols"), &finish = member(row, "finish");
    constexpr int kLargest = 1 << 24;
    if (!rows.is_number_integer() || !cols.is_number_integer() || !finish.is_string()) return std::nullopt;
    ProductShape shape;
    const auto r = rows.get<std::int64_t>(), c = cols.get<std::int64_t>();
    if (r < 1 || c < 1 || r > kLargest || c > kLargest) return std::nullopt;
    shape.rows = int(r), shape.cols = int(c);
    for (const ProductFinish known : {ProductFinish::Plain, ProductFinish::Normed, ProductFinish::Gated})
        if (finish.get_ref<const std::string&>() == nameOf(known)) {
            shape.finish = known;
            return shape;
        }
    return std::nullopt;
}

/// FNV-1a.
std::uint32_t checksum(std::string_view text) {
    std::uint32_t hash = 0x811c9dc5;
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x01000193;
    return hash;
}

} // namespace

std::string wordOf(ProductChoice choice) {
    switch (choice.kernel) {
    case ProductKernel::OneInput:
        return "one";
    case ProductKernel::FewRows:
        return "rows";
    case ProductKernel::Tiles:
        return "tiles";
    case ProductKernel::ManyInputs:
        return "own";
    case ProductKernel::Library:
        break;
    }
    return choice.candidate == 0 ? "lib" : fmt::format("lib{}", choice.candidate);
}

std::optional<ProductChoice> choiceOf(std::string_view word) {
    for (const ProductKernel kernel :
         {ProductKernel::OneInput, ProductKernel::FewRows, ProductKernel::Tiles, ProductKernel::ManyInputs})
        if (word == wordOf({kernel, 0})) return ProductChoice{kernel, 0};
    if (!word.starts_with("lib")) return std::nullopt;
    word.remove_prefix(3);
    ProductChoice choice;
    if (word.empty()) return choice;
    const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), choice.candidate);
    if (code != std::errc() || end != word.data() + word.size() || choice.candidate < 1 ||
        choice.candidate > kMostCandidate)
        return std::nullopt;
    return choice;
}

std::optional<std::size_t> productBucket(int n) {
    const auto found = std::ranges::lower_bound(kProductInputs, n);
    if (found == kProductInputs.end()) return std::nullopt;
    return std::size_t(found - kProductInputs.begin());
}

int proposedInputs(int n) {
    if (const auto bucket = productBucket(n)) return kProductInputs[*bucket];
    constexpr int kStep = kProductInputs.back();
    return (n + kStep - 1) / kStep * kStep;
}

ProductTable ProductTable::builtIn(ProductMachine machine) {
    ProductTable table;
    table.machine_ = std::move(machine);
    for (const BuiltIn& row : kBuiltIn) {
        if (row.gpu != table.machine_.gpu || row.capability != table.machine_.capability) continue;
        auto choices = choicesOf(wordsOf(row.words));
        if (!choices) continue; // the table's test says so
        for (std::size_t i = 0; i < choices->size(); ++i) {
            ProductChoice& choice = (*choices)[i];
            if (choice.kernel != ProductKernel::Library) continue;
            if (table.machine_.library == 0)
                choice = table.rule(kProductInputs[i]);
            else if (table.machine_.library != row.library)
                choice.candidate = 0;
        }
        table.known_[row.shape] = *choices;
    }
    return table;
}

ProductTable ProductTable::with(const std::map<ProductShape, Choices>& measured) const {
    ProductTable table = *this;
    for (const auto& [shape, choices] : measured) table.measured_[shape] = choices;
    return table;
}

ProductChoice ProductTable::rule(int n) const {
    if (n == 1) return {ProductKernel::OneInput, 0};
    if (n <= kMostFewRows) return {ProductKernel::FewRows, 0};
    if (n <= kMostTiles) return {ProductKernel::Tiles, 0};
    return {machine_.library != 0 ? ProductKernel::Library : ProductKernel::ManyInputs, 0};
}

ProductChoice ProductTable::choice(const ProductShape& shape, int n) const {
    if (const auto bucket = productBucket(n))
        for (const auto* rows : {&measured_, &known_})
            if (const auto found = rows->find(shape); found != rows->end() && fits(found->second[*bucket], n))
                return found->second[*bucket];
    return rule(n);
}

std::string ProductTable::name() const {
    std::string all = fmt::format("{} {} {}\n", machine_.gpu, machine_.capability, machine_.library);
    for (const auto* rows : {&known_, &measured_})
        for (const auto& [shape, choices] : *rows) {
            if (rows == &known_ && measured_.contains(shape)) continue;
            all += fmt::format("{} {} {} {}\n", shape.rows, shape.cols, nameOf(shape.finish), joined(choices));
        }
    return fmt::format("{} {:08x}", measured_.empty() ? "built-in" : "measured", checksum(all));
}

std::string ProductTable::text() const {
    nlohmann::ordered_json out{{"products", 1},
                               {"gpu", machine_.gpu},
                               {"capability", machine_.capability},
                               {"cublaslt", machine_.library},
                               {"inputs", kProductInputs},
                               {"choices", nlohmann::ordered_json::array()}};
    for (const auto& [shape, choices] : measured_)
        out["choices"].push_back({{"rows", shape.rows},
                                  {"cols", shape.cols},
                                  {"finish", nameOf(shape.finish)},
                                  {"kernels", joined(choices)}});
    return out.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

ProductTable::Read ProductTable::read(std::string_view text, const ProductMachine& machine) {
    const nlohmann::json all = parseJson(text);
    const auto refused = [](std::string why) { return Read{std::nullopt, std::move(why)}; };
    if (all.is_discarded() || !all.is_object()) return refused("it is not a JSON object");
    if (member(all, "products") != 1) return refused("it is of another version");
    if (member(all, "gpu") != machine.gpu || member(all, "capability") != machine.capability)
        return refused(fmt::format("it is of another GPU, {}", shownJson(member(all, "gpu"))));
    if (member(all, "cublaslt") != machine.library)
        return refused(fmt::format("it is of another cuBLASLt, {}", shownJson(member(all, "cublaslt"))));
    if (member(all, "inputs") != nlohmann::json(kProductInputs)) return refused("its numbers of inputs are others");
    if (!member(all, "choices").is_array()) return refused("it has no choices");
    std::map<ProductShape, Choices> measured;
    for (const nlohmann::json& row : member(all, "choices")) {
        const auto shape = shapeOf(row);
        const auto& kernels = member(row, "kernels");
        const auto choices =
            kernels.is_string() ? choicesOf(wordsOf(kernels.get_ref<const std::string&>())) : std::nullopt;
        if (!shape || !choices) return refused(fmt::format("it has a choice that is none, {}", shownJson(row)));
        for (const ProductChoice choice : *choices)
            if (choice.kernel == ProductKernel::Library && machine.library == 0)
                return refused("it chooses cuBLASLt, which is not installed");
        measured[*shape] = *choices;
    }
    return {builtIn(machine).with(measured), {}};
}

std::vector<ProductChoice> possibleChoices(const ProductMachine& machine, int inputs, int candidates) {
    std::vector<ProductChoice> out;
    for (const ProductKernel kernel : {ProductKernel::OneInput, ProductKernel::FewRows, ProductKernel::Tiles})
        if (fits({kernel, 0}, inputs)) out.push_back({kernel, 0});
    if (machine.library == 0 && inputs > kMostTiles) out.push_back({ProductKernel::ManyInputs, 0});
    for (int i = 0; machine.library != 0 && i < std::min(candidates, kMostCandidate + 1); ++i)
        out.push_back({ProductKernel::Library, i});
    return out;
}

ProductTable::Choices measureProduct(const ProductTable& table, const ProductShape& shape, int candidates,
                                     const ProductClock& seconds, const std::stop_token& stop) {
    ProductTable::Choices out{};
    for (std::size_t i = 0; i < out.size(); ++i) {
        const int inputs = kProductInputs[i];
        const ProductChoice own = table.choice(shape, inputs);
        double ownTime = std::numeric_limits<double>::infinity(), best = ownTime;
        ProductChoice fastest = own;
        for (const ProductChoice choice : possibleChoices(table.machine(), inputs, candidates)) {
            if (stop.stop_requested()) throw Error(ErrorKind::Cancelled, "measuring products was stopped");
            const double time = seconds(shape, inputs, choice);
            if (choice == own) ownTime = time;
            if (time < best) best = time, fastest = choice;
        }
        out[i] = best < ownTime * kWorthChanging ? fastest : own;
    }
    return out;
}

} // namespace kvscope
