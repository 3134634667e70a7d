#include "core/serve/workload.h"

#include "base/error.h"
#include "base/json_reading.h"
#include "base/json_text.h"
#include "base/text_file.h"
#include "core/serve/random_draws.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <ostream>

namespace kvscope::serve {
namespace {

constexpr double kUsPerSecond = 1e6;

/// Places each arrival one gap behind the one before it. The last gap reaches to the end of the span.
void placeByGaps(Workload& workload, const std::vector<double>& seconds) {
    double now = 0;
    for (std::size_t i = 0; i < workload.lines.size(); ++i) {
        workload.lines[i].arrivalUs = std::int64_t(std::floor(now * kUsPerSecond + 0.5));
        now += seconds[i];
    }
    workload.spanUs = std::max<std::int64_t>(std::int64_t(std::floor(now * kUsPerSecond + 0.5)), 1);
}

[[noreturn]] void refuseLine(const std::string& name, std::size_t line, const std::string& why) {
    throw Error(ErrorKind::BadInput, fmt::format("cannot read line {} of the workload '{}': {}", line, name, why),
                R"(a line reads {"timestamp":ms,"input_length":tokens,"output_length":tokens})");
}

double lineNumber(const nlohmann::json& object, const char* key, const std::string& name, std::size_t line) {
    const nlohmann::json& value = member(object, key);
    if (!value.is_number() || !std::isfinite(value.get<double>()))
        refuseLine(name, line, fmt::format("'{}' is not a number", key));
    return value.get<double>();
}

int lineTokens(const nlohmann::json& object, const char* key, const std::string& name, std::size_t line) {
    const double value = lineNumber(object, key, name, line);
    if (value != std::floor(value) || value < 1 || value > 1 << 28)
        refuseLine(name, line, fmt::format("'{}' is not a whole number from 1 to 268435456", key));
    return int(value);
}

} // namespace

void drawArrivals(Workload& workload, Arrivals arrivals, double shape, std::uint64_t seed) {
    if (arrivals == Arrivals::Recorded) return;
    if (arrivals == Arrivals::Gamma && !(shape > 0 && shape <= 1e6))
        throw Error(ErrorKind::BadInput, fmt::format("gamma arrivals of shape {}", shape), "give a shape above 0");
    Draws draws(seed);
    std::vector<double> gaps(workload.lines.size(), 1.0);
    if (arrivals != Arrivals::Constant)
        for (double& gap : gaps) gap = arrivals == Arrivals::Poisson ? draws.exponential() : draws.gamma(shape);
    placeByGaps(workload, gaps);
}

void changeRate(Workload& workload, double factor) {
    if (!(factor > 0) || !std::isfinite(factor))
        throw Error(ErrorKind::BadInput, fmt::format("a rate times {}", factor), "give a factor above 0");
    if (double(workload.spanUs) / factor > 1e15)
        throw Error(ErrorKind::BadInput, "at this rate the workload lasts more than 30 years", "give a higher rate");
    const auto scaled = [&](std::int64_t us) { return std::int64_t(std::floor(double(us) / factor + 0.5)); };
    for (WorkloadLine& line : workload.lines) line.arrivalUs = scaled(line.arrivalUs);
    workload.spanUs = std::max<std::int64_t>(scaled(workload.spanUs), 1);
}

void spreadArrivals(Workload& workload, std::int64_t bucketUs, std::uint64_t seed) {
    if (bucketUs <= 0) throw Error(ErrorKind::BadInput, "arrivals spread over no time", "give milliseconds above 0");
    Draws draws(seed);
    for (WorkloadLine& line : workload.lines)
        line.arrivalUs = line.arrivalUs / bucketUs * bucketUs + std::int64_t(draws.below(std::uint64_t(bucketUs)));
    std::stable_sort(workload.lines.begin(), workload.lines.end(),
                     [](const WorkloadLine& a, const WorkloadLine& b) { return a.arrivalUs < b.arrivalUs; });
    if (!workload.lines.empty()) workload.spanUs = std::max(workload.spanUs, workload.lines.back().arrivalUs + 1);
}

void changeLengths(Workload& workload, const LengthRules& rules) {
    if (!(rules.scale > 0) || !(rules.outputs > 0) || rules.cap < 0)
        throw Error(ErrorKind::BadInput, "lengths are changed by a number that is not positive");
    const double shorter = rules.scale > 2 ? rules.scale / 2 : 1;
    const auto rounded = [](double tokens) { return int(std::clamp(std::floor(tokens + 0.5), 1.0, double(1 << 28))); };
    for (WorkloadLine& line : workload.lines) {
        line.promptTokens = rounded(line.promptTokens / rules.scale);
        line.outputTokens = rounded(line.outputTokens / shorter * rules.outputs);
        if (rules.cap > 0) line.promptTokens = std::min(line.promptTokens, rules.cap);
    }
}

Workload longmix(int count, std::uint64_t seed) {
    if (count < 1 || count > 10'000'000)
        throw Error(ErrorKind::BadInput, fmt::format("a workload of {} requests", count), "give 1 to 10000000");
    const struct {
        const char* name;
        double share, median, deviation;
        int least, most, cap;
    } classes[] = {{"code", 0.39, 2600, 0.8, 256, 16384, 64},
                   {"short-qa", 0.14, 5000, 0.6, 512, 24576, 128},
                   {"long-qa", 0.16, 22000, 0.5, 2048, 65536, 128},
                   {"summary", 0.31, 11500, 0.7, 512, 65536, 512}};
    constexpr int kClasses = 4;
    // Rounds the shares to whole numbers of requests: the largest remainders are rounded up, of equal ones the first.
    int counts[kClasses], total = 0;
    double remainders[kClasses];
    for (int c = 0; c < kClasses; ++c) {
        const double exact = classes[c].share * count;
        counts[c] = int(std::floor(exact));
        remainders[c] = exact - counts[c];
        total += counts[c];
    }
    for (; total < count; ++total) {
        int best = 0;
        for (int c = 1; c < kClasses; ++c)
            if (remainders[c] > remainders[best] + 1e-9) best = c; // shares of binary fractions are not exact
        ++counts[best], remainders[best] = -1;
    }
    Draws draws(seed);
    Workload workload;
    workload.name = "longmix";
    for (int c = 0; c < kClasses; ++c) {
        const auto& kind = classes[c];
        std::vector<int> prompts, outputs;
        for (int i = 0; i < counts[c]; ++i) {
            const double p = (i + 0.5) / counts[c];
            const double tokens = kind.median * portableExp(kind.deviation * normalQuantile(p));
            prompts.push_back(int(std::clamp(std::floor(tokens + 0.5), double(kind.least), double(kind.most))));
            outputs.push_back(std::max(1, int(std::floor(kind.cap * (0.5 + 0.5 * p) + 0.5))));
        }
        draws.shuffle(prompts);
        draws.shuffle(outputs);
        for (std::size_t i = 0; i < prompts.size(); ++i)
            workload.lines.push_back({0, prompts[i], outputs[i], kind.name, 0});
    }
    draws.shuffle(workload.lines);
    for (WorkloadLine& line : workload.lines) line.seed = draws.bits() >> 32;
    drawArrivals(workload, Arrivals::Poisson, 1, draws.bits());
    const auto wholeMs = [](std::int64_t us) { return (us + 500) / 1000 * 1000; };
    for (WorkloadLine& line : workload.lines) line.arrivalUs = wholeMs(line.arrivalUs);
    workload.spanUs = std::max<std::int64_t>(wholeMs(workload.spanUs), 1);
    return workload;
}

void writeWorkload(const Workload& workload, std::ostream& out) {
    std::string text;
    for (const WorkloadLine& line : workload.lines) {
        text = fmt::format(R"({{"timestamp":{},"input_length":{},"output_length":{},"hash_ids":[],"class":)",
                           (line.arrivalUs + 500) / 1000, line.promptTokens, line.outputTokens);
        appendJsonString(text, line.kind);
        text += fmt::format(R"(,"seed":{}}})", line.seed);
        out << text << '\n';
    }
}

Workload readWorkload(std::string_view text, std::string name) {
    Workload workload;
    workload.name = std::move(name);
    std::size_t number = 0;
    while (!text.empty()) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        std::string_view line = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        ++number;
        if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
        if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
        const nlohmann::json object = parseJson(line);
        if (!object.is_object()) refuseLine(workload.name, number, "it is not a JSON object");
        const double ms = lineNumber(object, "timestamp", workload.name, number);
        if (ms < 0 || ms > 1e10) refuseLine(workload.name, number, "'timestamp' is not from 0 to 1e10");
        WorkloadLine request;
        request.arrivalUs = std::int64_t(std::floor(ms * 1000 + 0.5));
        request.promptTokens = lineTokens(object, "input_length", workload.name, number);
        request.outputTokens = lineTokens(object, "output_length", workload.name, number);
        if (const nlohmann::json& kind = member(object, "class"); kind.is_string())
            request.kind = kind.get<std::string>();
        if (const nlohmann::json& seed = member(object, "seed"); seed.is_number_unsigned())
            request.seed = seed.get<std::uint64_t>();
        if (!workload.lines.empty() && request.arrivalUs < workload.lines.back().arrivalUs)
            refuseLine(workload.name, number, "it arrives before the line above it");
        workload.lines.push_back(std::move(request));
    }
    if (workload.lines.empty())
        throw Error(ErrorKind::BadInput, fmt::format("the workload '{}' has no requests", workload.name));
    const std::int64_t last = workload.lines.back().arrivalUs;
    const auto gaps = std::int64_t(workload.lines.size()) - 1;
    workload.spanUs = last + (gaps > 0 && last > 0 ? std::max<std::int64_t>(last / gaps, 1) : 1'000'000);
    return workload;
}

Workload loadWorkload(const std::string& file) {
    return readWorkload(readTextFile(file, "the workload"), std::filesystem::path(file).filename().string());
}

} // namespace kvscope::serve
