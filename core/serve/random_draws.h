// Random numbers whose bits are the same on every machine. The distributions of the standard library differ between its
// implementations, and its logarithm may. These functions use additions, products, quotients and square roots alone,
// which IEEE 754 rounds in one way; the file is compiled without fused products.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace kvscope::serve {

/// Natural logarithm of a positive finite number and the exponential function, within 4 units in the last place.
double portableLog(double x);
double portableExp(double x);
/// The value below which a share p of the normal distribution lies, 0 < p < 1; absolute error below 1e-12.
double normalQuantile(double p);

/// A stream of numbers from one seed (splitmix64: Steele, Lea, Flood, OOPSLA 2014).
class Draws {
public:
    explicit Draws(std::uint64_t seed) : state_(seed) {}

    std::uint64_t bits();
    /// A number in (0, 1), never at its ends; odd multiples of 2^-53.
    double uniform();
    /// A whole number from 0 to count - 1; count at least 1.
    std::uint64_t below(std::uint64_t count);
    /// Exponentially distributed, of mean 1.
    double exponential();
    /// Normally distributed, of mean 0 and deviation 1 (Marsaglia's polar method).
    double normal();
    /// Gamma distributed, of mean 1 and coefficient of variation 1/sqrt(shape) (Marsaglia and Tsang, 2000); shape above
    /// 0.
    double gamma(double shape);

    /// Puts the list into a random order (Fisher and Yates).
    template <class T> void shuffle(std::vector<T>& list) {
        for (std::size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[std::size_t(below(i))]);
    }

private:
    std::uint64_t state_;
};

} // namespace kvscope::serve
