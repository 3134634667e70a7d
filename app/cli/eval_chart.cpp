#include "app/cli/eval_chart.h"

#include "app/cli/eval_results.h"
#include "base/utf8.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <vector>

namespace kvscope::cli {
namespace {

constexpr double kWidth = 1320, kHeight = 560, kPanelWidth = 360, kPanelHeight = 380, kLeft = 70, kTop = 90,
                 kPanelStep = 430;
constexpr double kCharacter = 6.0, kLine = 12; // of an 11 px label, roughly

/// The families of rows, by what their methods fetch. Each has a mark and one of Okabe and Ito's colours, which
/// everyone can tell apart.
struct Family {
    const char *name, *colour, *mark;
};
constexpr std::array kFamilies{
    Family{"everything stays and is read", "#555555", "square"}, Family{"evicts, never fetches", "#009e73", "diamond"},
    Family{"fetches blocks", "#d55e00", "circle"}, Family{"fetches tokens or chunks", "#0072b2", "triangle"}};

const Family& familyOf(const Json& row) {
    if (row.at("k").is_null()) return kFamilies[0];
    const Json& bytes = row.at("h2d_bytes_per_step");
    if (!bytes.is_number() || bytes.get<double>() == 0) return kFamilies[1];
    return row.at("unit_tokens").get<int>() >= 16 ? kFamilies[2] : kFamilies[3];
}

struct Panel {
    const char *key, *title;
    bool share; // 0..1, shown in percent
};
constexpr std::array kPanels{Panel{"needle_accuracy", "Needles found", true},
                             Panel{"perplexity_ratio", "Perplexity / that of full attention (lower is better)", false},
                             Panel{"mass", "Attention mass captured", true}};

/// As text of an XML document; what XML has no form for is left out, and controls of writing direction are shown.
std::string escaped(std::string_view text) {
    std::string result;
    const std::string valid = withDirectionsShown(toValidUtf8(text));
    for (std::size_t i = 0; i < valid.size(); ++i) {
        const char c = valid[i];
        const std::string_view three = std::string_view(valid).substr(i, 3);
        if (three == "\xef\xbf\xbe" || three == "\xef\xbf\xbf") // U+FFFE, U+FFFF
            i += 2;
        else if (static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t')
            result += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
    }
    return result;
}

std::string mark(const Family& family, double x, double y) {
    const std::string_view shape = family.mark;
    if (shape == "circle") return fmt::format("<circle cx='{:.1f}' cy='{:.1f}' r='5' fill='{}'/>", x, y, family.colour);
    std::vector<std::pair<double, double>> corners{{-4.5, -4.5}, {4.5, -4.5}, {4.5, 4.5}, {-4.5, 4.5}};
    if (shape == "diamond") corners = {{0, -6}, {6, 0}, {0, 6}, {-6, 0}};
    if (shape == "triangle") corners = {{0, -6}, {5.5, 4.5}, {-5.5, 4.5}};
    std::string points;
    for (const auto& [dx, dy] : corners) points += fmt::format("{:.1f},{:.1f} ", x + dx, y + dy);
    return fmt::format("<polygon points='{}' fill='{}'/>", points, family.colour);
}

struct Box {
    double left, top, right, bottom;
    bool meets(const Box& other) const {
        return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
    }
};

/// 1, 2 or 5 times a power of ten, about `count` to the range.
double tickStep(double range, int count) {
    const double raw = range / count, power = std::pow(10, std::floor(std::log10(raw)));
    for (const double factor : {1.0, 2.0, 5.0})
        if (factor * power >= raw) return factor * power;
    return 10 * power;
}

struct Axis {
    double low = 0, high = 1, step = 0.2;
    /// An axis for shares, from a little below the least one to a little above 1.
    static Axis ofShares(double least) {
        Axis axis(least, 1, false);
        axis.low = std::max(0.0, axis.low);
        axis.high = 1 + 0.06 * (1 - axis.low);
        return axis;
    }
    Axis(double least, double most, bool fromZero) {
        if (most - least < 1e-9) most = least + std::max(1e-3, std::abs(least) * 0.1);
        const double room = (most - least) * 0.08;
        step = tickStep(most - (fromZero ? 0 : least) + room, 5);
        low = fromZero ? 0 : std::floor((least - room) / step) * step;
        high = std::ceil((most + room) / step) * step;
    }
    double part(double value) const { return (value - low) / (high - low); }
};

struct Point {
    double x, y; // on the page
    std::string name;
    const Family* family;
};

/// The names of the points, as SVG. A name stands beside its point where there is room; else at the next place that is
/// free, with a line to its point.
std::string labels(const std::vector<Point>& points, const Box& panel) {
    std::vector<Box> taken;
    for (const Point& p : points) taken.push_back({p.x - 6, p.y - 6, p.x + 6, p.y + 6});
    std::string svg;
    for (const Point& p : points) {
        const double width = kCharacter * double(p.name.size());
        Box best{};
        bool placed = false;
        for (int ring = 0; ring < 14 && !placed; ++ring)
            for (const auto& [dx, dy] :
                 {std::pair{1, 0}, {-1, 0}, {0, -1}, {0, 1}, {1, -1}, {1, 1}, {-1, -1}, {-1, 1}}) {
                const double far = 8 + 11.0 * ring;
                const double left = dx > 0 ? p.x + far : dx < 0 ? p.x - far - width : p.x - width / 2;
                const double middle = p.y + dy * (far + 2);
                const Box box{left, middle - kLine / 2, left + width, middle + kLine / 2};
                const bool outside = box.left < panel.left || box.right > panel.right + 60 || box.top < panel.top ||
                                     box.bottom > panel.bottom;
                if (outside || std::any_of(taken.begin(), taken.end(), [&](const Box& b) { return box.meets(b); }))
                    continue;
                best = box;
                placed = true;
                if (ring > 1)
                    svg += fmt::format("<line x1='{:.1f}' y1='{:.1f}' x2='{:.1f}' y2='{:.1f}' stroke='#aaaaaa'/>", p.x,
                                       p.y, std::clamp(p.x, box.left, box.right), std::clamp(p.y, box.top, box.bottom));
                break;
            }
        if (!placed) best = {p.x + 8, p.y - kLine / 2, p.x + 8 + width, p.y + kLine / 2};
        taken.push_back(best);
        svg += fmt::format("<text x='{:.1f}' y='{:.1f}' font-size='11' fill='{}'>{}</text>\n", best.left,
                           best.bottom - 2.5, p.family->colour, escaped(p.name));
    }
    return svg;
}

/// A value above this one is drawn at the upper edge with its number beside it, because it would press all others
/// together.
double tooFar(const std::vector<const Json*>& rows, const char* key) {
    std::vector<double> values;
    for (const Json* row : rows) values.push_back(row->at(key).get<double>());
    std::sort(values.begin(), values.end());
    return std::max(1.1, 1 + 10 * (values[values.size() / 2] - 1));
}

std::string drawPanel(const Panel& panel, const Json& rows, double left) {
    std::vector<const Json*> shown;
    double least = INFINITY, most = -INFINITY, fastest = 0;
    for (const Json& row : rows) {
        if (!row.at(panel.key).is_number() || !row.at("tokens_per_s_with_link").is_number()) continue;
        shown.push_back(&row);
        least = std::min(least, row.at(panel.key).get<double>());
        most = std::max(most, row.at(panel.key).get<double>());
        fastest = std::max(fastest, row.at("tokens_per_s_with_link").get<double>());
    }
    std::string svg = fmt::format("<text x='{}' y='{}' font-size='14' font-weight='600' fill='#222222'>{}</text>\n",
                                  left, kTop - 16, panel.title);
    const Box box{left, kTop, left + kPanelWidth, kTop + kPanelHeight};
    if (shown.empty())
        return svg +
               fmt::format("<text x='{}' y='{}' font-size='12' fill='#666666'>not measured</text>\n", left, kTop + 20);
    const double cap = panel.share ? most : tooFar(shown, panel.key);
    const Axis x(0, fastest, true), y = panel.share ? Axis::ofShares(least) : Axis(least, std::min(most, cap), false);
    for (int i = 0; y.low + i * y.step <= y.high + 1e-9; ++i) {
        const double value = y.low + i * y.step, at = box.bottom - y.part(value) * kPanelHeight;
        if (panel.share && (value < -1e-9 || value > 1 + 1e-9)) continue;
        svg += fmt::format("<line x1='{}' x2='{}' y1='{:.1f}' y2='{:.1f}' stroke='#e4e4e4'/>"
                           "<text x='{}' y='{:.1f}' font-size='11' fill='#666666' text-anchor='end'>{}</text>\n",
                           box.left, box.right, at, at, box.left - 6, at + 4,
                           panel.share ? fmt::format("{:.0f} %", 100 * value) : fmt::format("{:.3g}", value));
    }
    for (int i = 0; x.low + i * x.step <= x.high + 1e-9; ++i) {
        const double value = x.low + i * x.step, at = box.left + x.part(value) * kPanelWidth;
        svg += fmt::format("<text x='{:.1f}' y='{}' font-size='11' fill='#666666' text-anchor='middle'>{:g}</text>\n",
                           at, box.bottom + 18, value);
    }
    svg += fmt::format("<line x1='{0}' x2='{1}' y1='{2}' y2='{2}' stroke='#888888'/>"
                       "<text x='{3}' y='{4}' font-size='12' fill='#444444' text-anchor='middle'>decode tokens/s, link "
                       "included</text>\n",
                       box.left, box.right, box.bottom, box.left + kPanelWidth / 2, box.bottom + 38);
    const bool severalContexts = std::any_of(
        rows.begin(), rows.end(), [&](const Json& row) { return row.at("context") != rows.front().at("context"); });
    std::vector<Point> points;
    for (const Json* row : shown) {
        std::string name = evalRowName(*row);
        if (severalContexts) name += fmt::format(" @{}", row->at("context").get<int>());
        const double value = row->at(panel.key).get<double>();
        if (value > cap) name += fmt::format(" ({:.2f})", value);
        points.push_back({box.left + x.part(row->at("tokens_per_s_with_link").get<double>()) * kPanelWidth,
                          box.bottom - y.part(std::min(value, y.high)) * kPanelHeight, name, &familyOf(*row)});
    }
    for (const Point& p : points) svg += mark(*p.family, p.x, p.y);
    return svg + "\n" + labels(points, box);
}

} // namespace

std::string evalChart(const Json& d) {
    const Json& rows = d.at("rows");
    std::string svg =
        fmt::format("<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {0} {1}' width='{0}' height='{1}' "
                    "font-family='Inter, Segoe UI, Helvetica, Arial, sans-serif'>\n"
                    "<rect width='100%' height='100%' fill='#ffffff'/>\n",
                    kWidth, kHeight);
    svg +=
        fmt::format("<text x='{}' y='34' font-size='18' font-weight='600' fill='#111111'>Quality against speed: {} on "
                    "{}, link {}</text>\n",
                    kLeft, escaped(d.at("model").get<std::string>()), escaped(d.at("backend").get<std::string>()),
                    escaped(d.at("link_description").get<std::string>()));
    for (std::size_t i = 0; i < kPanels.size(); ++i) svg += drawPanel(kPanels[i], rows, kLeft + kPanelStep * double(i));
    double x = kLeft;
    for (const Family& family : kFamilies) {
        svg += mark(family, x + 6, kHeight - 24);
        svg += fmt::format("<text x='{}' y='{}' font-size='12' fill='#444444'>{}</text>\n", x + 18, kHeight - 20,
                           family.name);
        x += 60 + 6.6 * double(std::string_view(family.name).size());
    }
    return svg + "</svg>\n";
}

} // namespace kvscope::cli
