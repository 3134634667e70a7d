#include "sdk/trace/rank_facts.h"

#include "core/trace/run_meta.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string_view>
#include <unistd.h>

namespace kvscope::sdk {
namespace {

using std::chrono::duration_cast;
using std::chrono::nanoseconds;

std::string hostName() {
    std::array<char, 256> name{};
    return gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.data()) : std::string();
}

/// Names the monotonic clock that all processes of this machine share since it was started: 64-bit FNV-1a of its boot
/// id, which itself stays out of the trace.
std::string monotonicClock() {
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    if (boot.empty()) boot = hostName();
    std::uint64_t hash = 0xCBF29CE484222325;
    for (const char c : boot) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "monotonic:%016llx", static_cast<unsigned long long>(hash));
    return text.data();
}

/// [[clock, ns on the run's clock, ns on the other one, largest error in ns], ...]
std::string listOf(const std::vector<ClockReading>& readings) {
    std::string list;
    for (const ClockReading& reading : readings)
        list += (list.empty() ? "[[\"" : ",[\"") + reading.clock + "\"," + std::to_string(reading.ownNs) + "," +
                std::to_string(reading.otherNs) + "," + std::to_string(reading.errorNs) + "]";
    return list + "]";
}

} // namespace

std::vector<ClockReading> readClocks(std::chrono::steady_clock::time_point began) {
    // the steady clock is the monotonic one of the machine, so its distance from the run's clock is exact
    static const std::string monotonic = monotonicClock();
    const auto before = std::chrono::steady_clock::now();
    const auto utc = std::chrono::system_clock::now().time_since_epoch();
    const auto after = std::chrono::steady_clock::now();
    const auto number = [](auto duration) { return std::int64_t(duration_cast<nanoseconds>(duration).count()); };
    const auto middle = before + (after - before) / 2;
    return {{monotonic, number(middle - began), number(middle.time_since_epoch()), 0},
            {"utc", number(middle - began), number(utc), number((after - before) / 2 + nanoseconds(1))}};
}

bool addRankFacts(std::vector<std::pair<std::string, std::string>>& meta, std::optional<int> rank,
                  std::chrono::steady_clock::time_point began) {
    const auto has = [&](std::string_view key) {
        return std::any_of(meta.begin(), meta.end(), [&](const auto& row) { return row.first == key; });
    };
    if (!rank && !has(run_meta::kRank)) return false;
    if (!has(run_meta::kRank)) meta.emplace_back(run_meta::kRank, std::to_string(*rank));
    if (!has(run_meta::kHost)) meta.emplace_back(run_meta::kHost, hostName());
    if (has(run_meta::kClocks)) return false;
    meta.emplace_back(run_meta::kClocks, listOf(readClocks(began)));
    return true;
}

} // namespace kvscope::sdk
