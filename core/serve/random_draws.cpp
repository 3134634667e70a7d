#include "core/serve/random_draws.h"

#include <cmath>

namespace kvscope::serve {
namespace {

constexpr double kLn2 = 0.693147180559945309417232121458;

} // namespace

double portableLog(double x) {
    // Writes x = m 2^e with m around 1, and sums log m = 2 atanh((m - 1) / (m + 1)) as a series in odd powers.
    int exponent = 0;
    double m = std::frexp(x, &exponent); // exact; m in [0.5, 1)
    if (m < 0.70710678118654752) m *= 2, --exponent;
    const double s = (m - 1) / (m + 1), square = s * s; // |s| <= 0.1716
    double sum = 0;
    for (int k = 27; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
    return exponent * kLn2 + 2 * s * sum;
}

double portableExp(double x) {
    if (x < -745) return 0;
    if (x > 709.7) return HUGE_VAL;
    // Writes x = n log 2 + r, and sums the series of e^r for r around 0.
    const double n = std::floor(x / kLn2 + 0.5), r = x - n * kLn2; // |r| <= 0.347
    double sum = 1;
    for (int k = 20; k >= 1; --k) sum = 1 + r / k * sum;
    return std::ldexp(sum, int(n)); // exact
}

double normalQuantile(double p) {
    // The integral of the distribution up to x is 1/2 + density(x) (x + x^3/3 + x^5/15 + ...). Halving an interval
    // finds the x at which it is p.
    const auto share = [](double x) {
        double term = x, sum = x;
        for (int k = 3; k < 400; k += 2) {
            term = term * x * x / k, sum += term;
            if (sum == sum - term) break;
        }
        constexpr double density = 0.398942280401432677939946059934; // at 0
        return 0.5 + sum * density * portableExp(-0.5 * x * x);
    };
    if (p > 0.5) return -normalQuantile(1 - p);
    double low = -9, high = 0;
    for (int i = 0; i < 64; ++i) {
        const double middle = 0.5 * (low + high);
        (share(middle) < p ? low : high) = middle;
    }
    return 0.5 * (low + high);
}

std::uint64_t Draws::bits() {
    state_ += 0x9E3779B97F4A7C15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

double Draws::uniform() { return (double(bits() >> 12) + 0.5) * 0x1p-52; }

std::uint64_t Draws::below(std::uint64_t count) {
    // Numbers of the last, incomplete round of `count` are drawn again, so that all results are equally likely.
    const std::uint64_t whole = UINT64_MAX - UINT64_MAX % count;
    std::uint64_t value = bits();
    while (value >= whole) value = bits();
    return value % count;
}

double Draws::exponential() { return -portableLog(uniform()); }

double Draws::normal() {
    while (true) {
        const double x = 2 * uniform() - 1, y = 2 * uniform() - 1, square = x * x + y * y;
        if (square > 0 && square < 1) return x * std::sqrt(-2 * portableLog(square) / square);
    }
}

double Draws::gamma(double shape) {
    if (shape < 1) { // draws with shape + 1, and multiplies by a power of a uniform number
        const double larger = gamma(shape + 1) * (shape + 1);
        return larger * portableExp(portableLog(uniform()) / shape) / shape;
    }
    const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
    while (true) {
        const double x = normal(), root = 1 + c * x;
        if (root <= 0) continue;
        const double v = root * root * root;
        if (portableLog(uniform()) < 0.5 * x * x + d - d * v + d * portableLog(v)) return d * v / shape;
    }
}

} // namespace kvscope::serve
