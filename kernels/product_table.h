// Which kernel multiplies, for products of bf16 weights on a GPU: a table chooses it by the shape of the weights and
// the number of inputs. A table does not change while a process runs. It is plain data: it needs no GPU and reads no
// files.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

/// The kernels of kernels/cuda/linear, and cuBLASLt.
enum class ProductKernel : std::uint8_t { OneInput, FewRows, Tiles, Library, ManyInputs };

struct ProductChoice {
    ProductKernel kernel = ProductKernel::Library;
    int candidate = 0; // number of the library's proposal, from 0 on; 0 with all other kernels
    auto operator<=>(const ProductChoice&) const = default;
};

/// "one", "rows", "tiles", "own", "lib", "lib3".
std::string wordOf(ProductChoice choice);
std::optional<ProductChoice> choiceOf(std::string_view word);

/// What is computed before and after a product. A choice is measured, and made, for the product together with that.
enum class ProductFinish : std::uint8_t {
    Plain,  // bf16 inputs, float results, which may be added to what is there
    Normed, // float inputs that are normalised, float results
    Gated   // float inputs that are normalised, bf16 results of silu(gate) * up
};
constexpr const char* nameOf(ProductFinish finish) {
    return finish == ProductFinish::Plain ? "plain" : finish == ProductFinish::Normed ? "normed" : "gated";
}

struct ProductShape {
    int rows = 0, cols = 0; // outputs (both of gate and up) and inputs
    ProductFinish finish = ProductFinish::Plain;
    auto operator<=>(const ProductShape&) const = default;
};

/// A table has one choice for each of these numbers of inputs; any other number takes the choice of the next larger
/// one. For more inputs than the last one the rule chooses.
inline constexpr std::array kProductInputs{1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256};
/// The place of n in kProductInputs; nothing for more inputs than it has.
std::optional<std::size_t> productBucket(int n);
/// The number of inputs for which the library is asked for proposals: n rounded up to the next number in
/// kProductInputs, and beyond the last of these to a multiple of it. For nearly equal numbers the library proposes
/// different algorithms, and the first use of each takes milliseconds, because its kernel is loaded.
int proposedInputs(int n);

/// The machine on which a table's times were measured.
struct ProductMachine {
    std::string gpu;    // the driver's name of it
    int capability = 0; // 90: compute capability 9.0
    int library = 0;    // cublasLtGetVersion(), 0: not installed
    auto operator<=>(const ProductMachine&) const = default;
};

class ProductTable {
public:
    using Choices = std::array<ProductChoice, kProductInputs.size()>;

    /// The compiled-in choices for the shapes of our models, on a GPU on which they were measured, and the rule for
    /// everything else. Where the library's version is another one than that of the measurement, its first proposal
    /// takes the place of every later one.
    static ProductTable builtIn(ProductMachine machine);
    /// This table with more rows, which replace compiled-in rows of the same shape.
    ProductTable with(const std::map<ProductShape, Choices>& measured) const;

    /// n: at least 1
    ProductChoice choice(const ProductShape& shape, int n) const;
    /// The choice of the rule, which goes by the number of inputs alone.
    ProductChoice rule(int n) const;

    const ProductMachine& machine() const { return machine_; }
    const std::map<ProductShape, Choices>& measured() const { return measured_; }
    /// "built-in 0123abcd" or "measured 0123abcd": the number is a checksum of all choices, so two tables with the same
    /// name choose alike.
    std::string name() const;

    /// The measured rows as JSON.
    std::string text() const;
    struct Read;
    /// Reads what text() has written for the same machine.
    static Read read(std::string_view text, const ProductMachine& machine);

private:
    ProductMachine machine_;
    std::map<ProductShape, Choices> known_, measured_; // compiled in; measured
};

struct ProductTable::Read {
    std::optional<ProductTable> table; // nothing: `problem` says why, as half a sentence
    std::string problem;
};

/// Measures in seconds how long a product takes, with the norm before it and the SiLU behind it where the shape has
/// them, when its weights are in no cache. Infinite where the machine cannot multiply in this way.
using ProductClock = std::function<double(const ProductShape& shape, int inputs, ProductChoice choice)>;

/// All choices that can multiply so many inputs, the library's first `candidates` among them.
std::vector<ProductChoice> possibleChoices(const ProductMachine& machine, int inputs, int candidates);

/// Takes the time of every possible choice and returns the fastest ones. The table's own choice stays unless another
/// takes at least 2 % less time, so that noise seldom decides.
ProductTable::Choices measureProduct(const ProductTable& table, const ProductShape& shape, int candidates,
                                     const ProductClock& seconds, const std::stop_token& stop = {});

} // namespace kvscope
