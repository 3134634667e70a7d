#include "profiler/report/html_charts.h"

#include "base/extents.h"
#include "base/indexed.h"
#include "base/utf8.h"
#include "profiler/report/ratio.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

namespace kvscope::reports {
namespace {

constexpr double kWidth = 1000, kLeft = 78, kRight = 12; // of a chart, in its own units
constexpr std::size_t kMostColumns = 400;                // of steps; more are averaged
constexpr int kStepsAtOnce = 1 << 16;                    // of a heatmap, in memory
constexpr int kCellsAtOnce = 1 << 22;                    // likewise: steps times layers

template <class... Values> void append(std::string& out, fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(out), format, std::forward<Values>(values)...);
}

/// Round numbers from 0 to at least `largest`.
std::vector<double> ticks(double low, double high, int wanted) {
    if (!(high > low)) high = low + 1;
    const double rough = (high - low) / wanted, power = std::pow(10.0, std::floor(std::log10(rough)));
    double step = power;
    for (const double factor : {1.0, 2.0, 5.0, 10.0})
        if (power * factor >= rough * 0.999) {
            step = power * factor;
            break;
        }
    std::vector<double> result;
    for (double tick = std::ceil(low / step - 1e-9) * step; tick <= high + step * 1e-6; tick += step)
        result.push_back(std::abs(tick) < step * 1e-9 ? 0 : tick);
    return result;
}

struct Series {
    std::size_t run = 0;
    Numbered<double> values; // [column]; NaN: a gap
};

struct LineChart {
    std::string title;
    Quantity quantity = Quantity::Count;
    bool fromZero = true, dots = false;
    double highest = kUndefined;      // of the axis, where it is known
    std::vector<std::string> columns; // "step 12", "layer 3": head of the hint
    std::vector<double> places;       // [column] value on the horizontal axis
    std::string axis;                 // what the horizontal axis counts
    std::vector<Series> series;
};

std::string draw(const LineChart& chart, const Report& report) {
    constexpr double kTop = 26, kHeight = 190, kBottom = 40;
    double low = chart.fromZero ? 0 : std::numeric_limits<double>::infinity(), high = -1e300;
    for (const Series& series : chart.series)
        for (const double value : series.values)
            if (std::isfinite(value)) low = std::min(low, value), high = std::max(high, value);
    if (high < low) return {};
    if (std::isfinite(chart.highest)) high = chart.highest;
    if (!chart.fromZero) low = std::max(0.0, low - (high - low) * 0.08);
    if (high <= low) high = low + (chart.quantity == Quantity::Count ? 1 : std::max(1.0, std::abs(low)));
    const double inner = kWidth - kLeft - kRight;
    const double first = chart.places.front(), last = chart.places.back();
    const double span = last > first ? last - first : 1;
    const double margin = chart.dots ? inner / double(chart.places.size()) / 2 : 0;
    const auto x = [&](std::size_t column) {
        return kLeft + margin + (inner - 2 * margin) * (chart.places[column] - first) / span;
    };
    const auto y = [&](double value) { return kTop + kHeight * (1 - (value - low) / (high - low)); };

    std::string out;
    append(out, "<svg class=\"chart\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">", kWidth,
           kTop + kHeight + kBottom, escaped(chart.title));
    append(out, "<text class=\"strong\" x=\"0\" y=\"14\">{}</text>", escaped(chart.title));
    for (const double tick : ticks(low, high, 4)) {
        if (tick > high * 1.0001) continue;
        append(
            out,
            "<line class=\"grid\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/><text x=\"{3}\" y=\"{4:.1f}\" "
            "text-anchor=\"end\">{5}</text>",
            kLeft, kWidth - kRight, y(tick), kLeft - 8, y(tick) + 4, display(tick, chart.quantity));
    }
    append(out, "<line class=\"axis\" x1=\"{0}\" x2=\"{1}\" y1=\"{2}\" y2=\"{2}\"/>", kLeft, kWidth - kRight,
           kTop + kHeight);
    std::vector<double> below;
    for (const double tick : ticks(first, last, std::min(10, std::max(1, int(span)))))
        if (tick == std::floor(tick) && tick >= first && tick <= last) below.push_back(tick);
    for (const double tick : below)
        append(out, "<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
               kLeft + margin + (inner - 2 * margin) * (tick - first) / span, kTop + kHeight + 16,
               display(tick, Quantity::Count));
    append(out, "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>", kLeft + inner / 2, kTop + kHeight + 34,
           escaped(chart.axis));
    for (const Series& series : chart.series) {
        std::string path;
        bool pen = false;
        for (std::size_t column = 0; column < series.values.size(); ++column) {
            const double value = series.values[column];
            if (!std::isfinite(value)) {
                pen = false;
                continue;
            }
            append(path, "{}{:.1f} {:.1f}", pen ? 'L' : 'M', x(column), y(value));
            pen = true;
        }
        append(out, "<path class=\"line\" stroke=\"{}\" d=\"{}\"/>", runColour(series.run), path);
        if (chart.dots)
            for (std::size_t column = 0; column < series.values.size(); ++column)
                if (std::isfinite(series.values[column]))
                    append(out, "<circle r=\"3\" cx=\"{:.1f}\" cy=\"{:.1f}\" fill=\"{}\"/>", x(column),
                           y(series.values[column]), runColour(series.run));
    }
    const double width = inner / double(chart.places.size());
    for (std::size_t column = 0; column < chart.places.size(); ++column) {
        std::string hint = chart.columns[column];
        for (const Series& series : chart.series)
            if (column < series.values.size())
                hint += (report.runs.size() > 1 ? "\n" + report.runs[series.run].row.name + ": " : "\n") +
                        display(series.values[column], chart.quantity);
        append(out, "<rect class=\"hover\" x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" data-tip=\"{}\"/>",
               x(column) - width / 2, kTop, width, kHeight, escaped(hint));
    }
    return out + "</svg>";
}

std::string legend(const Report& report) {
    if (report.runs.size() < 2) return {};
    std::string out = "<div class=\"legend\">";
    for (std::size_t run = 0; run < report.runs.size(); ++run)
        append(out, "<span><i class=\"swatch {}\"></i>{}</span>", runClass(run), escaped(report.runs[run].row.name));
    return out + "</div>";
}

/// Means of `perColumn` steps.
Numbered<double> averaged(const RunData& run, std::size_t perColumn,
                          const std::function<double(const StepRow&)>& value) {
    Numbered<double> result;
    for (std::size_t first = 0; first < run.steps.size(); first += perColumn) {
        const std::size_t last = std::min(run.steps.size(), first + perColumn);
        double sum = 0;
        for (std::size_t i = first; i < last; ++i) sum += value(run.steps[i]);
        result.push_back(sum / double(last - first));
    }
    return result;
}

std::string timings(const Report& report) {
    std::string words;
    for (const RunData& run : report.runs)
        if (!run.row.timing.text().empty() && words.find(run.row.timing.text()) == std::string::npos)
            words += (words.empty() ? "" : " / ") + run.row.timing.text();
    return words;
}

} // namespace

std::string escaped(std::string_view raw) {
    std::string out;
    const std::string valid = withDirectionsShown(toValidUtf8(raw));
    for (std::size_t i = 0; i < valid.size(); ++i) {
        const char c = valid[i];
        const auto byte = static_cast<unsigned char>(c);
        const bool noCharacter = valid.compare(i, 3, "\xef\xbf\xbe") == 0 || valid.compare(i, 3, "\xef\xbf\xbf") == 0;
        if (noCharacter) { // U+FFFE and U+FFFF
            out += ' ';
            i += 2;
        } else if (byte == 0xc2 && static_cast<unsigned char>(valid[i + 1]) < 0xa0) { // C1: U+0080 to U+009F
            out += ' ';
            ++i;
        } else if (c == '&')
            out += "&amp;";
        else if (c == '<')
            out += "&lt;";
        else if (c == '>')
            out += "&gt;";
        else if (c == '"')
            out += "&quot;";
        else if (c == '\n')
            out += "&#10;"; // survives in an attribute
        else
            out += byte < 0x20 || byte == 0x7f ? ' ' : c;
    }
    return out;
}

std::string base64(std::string_view bytes) {
    constexpr char kLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string out;
    out.reserve((bytes.size() + 2) / 3 * 4);
    for (std::size_t i = 0; i < bytes.size(); i += 3) {
        std::uint32_t three = 0;
        for (std::size_t j = 0; j < 3; ++j)
            three = three << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0U);
        for (std::size_t j = 0; j < 4; ++j) out += i + j > bytes.size() ? '=' : kLetters[three >> (18 - 6 * j) & 63];
    }
    return out;
}

std::size_t colourOf(std::string_view component) {
    for (std::size_t i = 0; i < kStageNames.size(); ++i)
        if (kStageNames[i] == component) return i;
    for (std::size_t i = 0; i < kStepStageNames.size(); ++i)
        if (kStepStageNames[i] == component) return kStageNames.size() + i;
    return kStageNames.size() + kStepStageNames.size();
}

std::string runClass(std::size_t run) { return fmt::format("run{}", run % 6); }

std::string runColour(std::size_t run) { return fmt::format("var(--run{})", run % 6); }

std::string breakdownChart(const Report& report) {
    constexpr double kBar = 26, kRow = 52;
    double longest = 0;
    bool modelled = false;
    std::vector<std::string> components; // in the order of the pipeline
    for (const RunData& run : report.runs) {
        if (run.steps.empty()) continue;
        const bool extra = run.row.timing == Timing::Modelled && run.summary.exposedMsPerStep > 0;
        modelled |= extra;
        if (!(run.summary.stepMs > 0)) continue; // nothing, or not known
        longest = std::max(longest, 1e6 * (run.summary.stepMs + (extra ? run.summary.exposedMsPerStep : 0)));
        for (const ComponentShare& part : run.summary.components)
            if (part.phase == Phase::Decode &&
                std::find(components.begin(), components.end(), part.component) == components.end())
                components.push_back(part.component);
    }
    if (longest <= 0) return "<p class=\"about\">No decode step was recorded.</p>";
    const double scale = kWidth / longest;
    std::string out;
    append(out, "<svg class=\"chart\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"Mean decode step by component\">",
           kWidth, kRow * double(report.runs.size()));
    for (std::size_t index = 0; index < report.runs.size(); ++index) {
        const RunData& run = report.runs[index];
        const double top = kRow * double(index), wall = run.summary.stepMs * 1e6;
        append(out, "<text class=\"strong\" x=\"0\" y=\"{}\">{} · mean decode step {}</text>", top + 14,
               escaped(run.row.name), display(wall, Quantity::Nanoseconds));
        if (!(wall > 0)) continue;
        double x = 0;
        for (const ComponentShare& part : run.summary.components) {
            if (part.phase != Phase::Decode || part.totalNs <= 0) continue;
            const double mean = run.componentMeanNs(part.component);
            append(out,
                   "<rect class=\"seg\" x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" fill=\"var(--c{})\" "
                   "data-tip=\"{}\"/>",
                   x, top + 20, mean * scale, kBar, colourOf(part.component),
                   escaped(fmt::format("{}\n{} per step, {} of decode time", part.component,
                                       display(mean, Quantity::Nanoseconds), display(mean / wall, Quantity::Share))));
            x += mean * scale;
        }
        const double exposed = run.summary.exposedMsPerStep * 1e6;
        if (run.row.timing == Timing::Modelled && exposed > 0)
            append(
                out,
                "<rect class=\"seg extra\" pointer-events=\"all\" x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" "
                "stroke=\"var(--c5)\" data-tip=\"{}\"/>",
                x + 1, top + 21, std::max(0.0, exposed * scale - 2), kBar - 2,
                escaped(fmt::format("exposed transfer time (modelled)\n{} per step, not part of the wall time",
                                    display(exposed, Quantity::Nanoseconds))));
    }
    out += "</svg><div class=\"legend\">";
    for (const std::string& component : components)
        append(out, "<span><i class=\"swatch c{}\"></i>{}</span>", colourOf(component), escaped(component));
    if (modelled)
        out += "<span><i class=\"swatch would\"></i>exposed transfer time, modelled: "
               "what the link would add</span>";
    return out + "</div>";
}

std::string stepCharts(const Report& report) {
    std::size_t longest = 0;
    for (const RunData& run : report.runs) longest = std::max(longest, run.steps.size());
    if (longest < 2) return {};
    const std::size_t perColumn = (longest + kMostColumns - 1) / kMostColumns;
    struct {
        std::string title;
        Quantity quantity;
        Known needed;
        std::function<double(const StepRow&)> value;
    } const charts[] = {
        {"Step time (measured)", Quantity::Nanoseconds, Known::StepTimes,
         [](const StepRow& s) { return double(s.durationNs); }},
        {"Misses per step, blocks", Quantity::Count, Known::Hits, [](const StepRow& s) { return double(s.misses); }},
        {"Exposed transfer time per step (" + timings(report) + ")", Quantity::Nanoseconds, Known::ExposedTimes,
         [](const StepRow& s) { return double(s.exposedNs); }},
    };
    std::string out = legend(report);
    if (perColumn > 1) append(out, "<p class=\"about\">Every point is the mean of {} steps.</p>", perColumn);
    for (const auto& each : charts) {
        LineChart chart;
        chart.title = each.title;
        chart.quantity = each.quantity;
        chart.axis = "decode step";
        for (std::size_t first = 0; first < longest; first += perColumn) {
            const std::size_t last = std::min(longest, first + perColumn);
            chart.columns.push_back(perColumn == 1 ? fmt::format("decode step {}", first + 1)
                                                   : fmt::format("decode steps {}–{}, mean", first + 1, last));
            chart.places.push_back(double(first + 1));
        }
        bool any = false;
        for (std::size_t run = 0; run < report.runs.size(); ++run) {
            if (!report.runs[run].row.knows.has(each.needed)) continue;
            chart.series.push_back({run, averaged(report.runs[run], perColumn, each.value)});
            for (const double value : chart.series.back().values) any |= value > 0;
        }
        if (any) out += draw(chart, report);
    }
    return out;
}

std::string layerCharts(const Report& report) {
    int deepest = -1;
    for (const RunData& run : report.runs)
        for (const LayerTotals& layer : run.layers) deepest = std::max(deepest, layer.layer);
    if (deepest < 0) return {};
    struct {
        const char* title;
        Quantity quantity;
        bool fromZero;
        double highest;
        Known needed;
        std::function<double(const LayerTotals&)> value;
    } const charts[] = {
        {"Locality γ by layer", Quantity::Ratio, false, 1, Known::Selections,
         [](const LayerTotals& l) { return l.localityMean; }},
        {"Misses by layer and decode step, blocks", Quantity::Count, true, kUndefined, Known::Hits,
         [](const LayerTotals& l) {
             return l.selected > 0 && l.warmSteps > 0 ? double(l.warmMisses) / double(l.warmSteps) : kUndefined;
         }},
        {"Wall time by layer and decode step (measured)", Quantity::Nanoseconds, true, kUndefined, Known::StageTimes,
         [](const LayerTotals& l) {
             return l.warmSteps > 0 ? double(l.warmDurationNs) / double(l.warmSteps) : kUndefined;
         }},
    };
    std::string out = legend(report);
    for (const auto& each : charts) {
        LineChart chart;
        chart.title = each.title;
        chart.quantity = each.quantity;
        chart.fromZero = each.fromZero;
        chart.highest = each.highest;
        chart.dots = true;
        chart.axis = "layer";
        for (int layer = 0; layer <= deepest; ++layer) {
            chart.columns.push_back(fmt::format("layer {}", layer));
            chart.places.push_back(layer);
        }
        for (std::size_t run = 0; run < report.runs.size(); ++run) {
            Numbered<double> values(deepest + 1, kUndefined);
            if (!report.runs[run].row.knows.has(each.needed)) continue;
            for (const LayerTotals& layer : report.runs[run].layers)
                if (layer.layer >= 0) values[layer.layer] = each.value(layer);
            chart.series.push_back({run, std::move(values)});
        }
        if (!chart.series.empty()) out += draw(chart, report);
    }
    return out;
}

/// Means over a heatmap's columns, [column][layer]; NaN: undefined.
struct HeatMeans {
    std::vector<float> values;
    std::vector<std::string> rowNames;
    bool any = false;
};

/// Reads the run in pieces, each from a recorded step on: the numbers of steps may have gaps of any length.
HeatMeans meansOf(const TraceReader& reader, const RunData& run, Metric metric, int perColumn) {
    struct Mean {
        double sum = 0;
        int defined = 0;
    };
    const int first = run.steps.front().step, last = run.steps.back().step;
    const int columns = (last - first) / perColumn + 1;
    const int atOnce = std::clamp(kCellsAtOnce / std::max(run.row.layers, 1), 1, kStepsAtOnce);
    const Extents<int, int> meanAt(columns, run.row.layers);
    std::vector<Mean> sums(meanAt.size());
    HeatMeans means;
    for (auto next = run.steps.begin(); next != run.steps.end();) {
        const int from = next->step, to = int(std::min<std::int64_t>(std::int64_t(from) + atOnce - 1, last));
        const StepMatrix matrix = reader.layerMatrix(run.row.runId, metric, {}, from, to);
        means.rowNames = matrix.rowNames;
        for (; next != run.steps.end() && next->step <= to; ++next)
            for (int row = 0; row < std::min(run.row.layers, matrix.rows) && next->step - from < matrix.steps; ++row)
                if (const float value = matrix.at(next->step - from, row); std::isfinite(value)) {
                    Mean& mean = sums[meanAt.offset((next->step - first) / perColumn, row)];
                    mean.sum += value, ++mean.defined;
                    means.any = true;
                }
    }
    for (const Mean& mean : sums)
        means.values.push_back(mean.defined > 0 ? float(mean.sum / mean.defined)
                                                : std::numeric_limits<float>::quiet_NaN());
    return means;
}

std::string heatmap(const RunData& run, std::size_t index) {
    if (run.steps.empty()) return {};
    const TraceReader reader(run.path);
    const int first = run.steps.front().step, last = run.steps.back().step;
    const int perColumn = int((std::size_t(last - first) + kMostColumns) / kMostColumns);
    nlohmann::ordered_json data{{"first", first}, {"last", last}, {"stepsPerColumn", perColumn}};
    std::string options;
    for (const MetricInfo& info : metrics()) {
        const HeatMeans means = meansOf(reader, run, info.metric, perColumn);
        if (!means.any) continue;
        static_assert(std::endian::native == std::endian::little, "the page reads little-endian numbers");
        std::string bytes(means.values.size() * sizeof(float), '\0');
        std::memcpy(bytes.data(), means.values.data(), bytes.size());
        data["columns"] = (last - first) / perColumn + 1;
        data["rows"] = means.rowNames;
        const bool share = info.metric == Metric::Locality || info.metric == Metric::HitRate;
        const std::string title =
            info.metric == Metric::ExposedTime
                ? std::string(info.title) + " (" + withDirectionsShown(run.row.timing.text()) + ")"
                : info.title;
        data["metrics"].push_back({{"title", title},
                                   {"help", info.help},
                                   {"unit", *info.unit ? info.unit : "ratio"},
                                   {"low", share ? nlohmann::ordered_json() : nlohmann::ordered_json(0)},
                                   {"high", share ? nlohmann::ordered_json(1) : nlohmann::ordered_json()},
                                   {"data", base64(bytes)}});
        append(options, "<option>{}</option>", escaped(title));
    }
    if (options.empty()) return {};
    std::string json = data.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    for (const auto& [letter, code] : {std::pair{"&", "\\u0026"}, {"<", "\\u003c"}, {">", "\\u003e"}})
        for (std::size_t at = 0; (at = json.find(letter, at)) != std::string::npos; at += 6) json.replace(at, 1, code);
    const std::string top = data["rows"].front().get<std::string>(), bottom = data["rows"].back().get<std::string>();
    std::string out;
    append(out,
           "<h3>{}</h3><div class=\"heat\" id=\"heat-{}\"><div class=\"bar\"><select aria-label=\"Metric\">{}</select>"
           "<span class=\"low\"></span><i class=\"ramp\"></i><span class=\"high\"></span><span>grey: undefined</span>"
           "</div><div class=\"axes\"><div class=\"rows\"><span>{}</span><span>{}</span></div><canvas></canvas>"
           "<div class=\"cols\"><span>step {}</span><span>{}</span><span>step {}</span></div></div>"
           "<p class=\"about help\"></p><script type=\"application/json\">{}</script></div>",
           escaped(run.row.name), index, options, escaped(top), bottom == top ? "" : escaped(bottom), first,
           perColumn > 1 ? fmt::format("a column is the mean of {} steps", perColumn) : "", last, json);
    return out;
}

} // namespace kvscope::reports
