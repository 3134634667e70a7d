#include "profiler/report/html.h"

#include "base/error.h"
#include "base/whole_file.h"
#include "profiler/read/definitions.h"
#include "profiler/report/html_charts.h"
#include "resources/resources.h"

#include <cmath>
#include <fmt/format.h>
#include <random>

namespace kvscope::reports {
namespace {

template <class... Values> void put(std::string& out, fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(out), format, std::forward<Values>(values)...);
}

bool isNumberColumn(const Table& table, std::size_t column) {
    bool any = false;
    for (const auto& row : table.rows) {
        if (std::holds_alternative<std::string>(row[column].value)) return false;
        any |= row[column].isNumber();
    }
    return any;
}

std::string cellMarkup(const Cell& cell, const Column& column, bool number) {
    const bool words = std::holds_alternative<std::string>(cell.value);
    const char* kind = column.csvOnly                                                             ? "csv"
                       : number || cell.isNumber()                                                ? "n"
                       : column.id == "note"                                                      ? "note"
                       : column.id == "command"                                                   ? "wide"
                       : column.id == "detail" || column.id == "advice" || column.id == "finding" ? "note"
                                                                                                  : "t";
    const std::string shown = column.id == "note" && raw(cell).empty() ? std::string() : escaped(display(cell));
    std::string out;
    put(out, "<td class=\"{}\" data-v=\"{}\">{}", kind, escaped(raw(cell)),
        column.id == "command" ? "<code>" + shown + "</code>" : shown);
    // Most numbers were measured by a clock; those that were not get a tag.
    if (!words && cell.isNumber() && (cell.basis == Basis::Modelled || cell.basis == Basis::Predicted))
        put(out, "<span class=\"tag {0}\">{0}</span>", nameOf(cell.basis));
    return out + "</td>";
}

std::string tableMarkup(const Table& table) {
    std::string out;
    put(out,
        "<div class=\"tools\"><button type=\"button\" data-copy=\"t-{0}\">Copy as CSV</button></div><div "
        "class=\"scroll{1}\"><table id=\"t-{0}\"><thead><tr>",
        table.id, table.rows.size() > 20 ? " tall" : "");
    std::vector<bool> numbers;
    for (std::size_t i = 0; i < table.columns.size(); ++i) {
        const Column& column = table.columns[i];
        numbers.push_back(isNumberColumn(table, i));
        put(out, "<th scope=\"col\" tabindex=\"0\"{} data-id=\"{}\"{}>{}</th>",
            column.csvOnly   ? " class=\"csv\""
            : numbers.back() ? " class=\"n\""
                             : "",
            escaped(column.id), column.help.empty() ? "" : " data-tip=\"" + escaped(column.help) + "\"",
            escaped(column.title));
    }
    out += "</tr></thead><tbody>";
    for (const auto& row : table.rows) {
        out += "<tr>";
        for (std::size_t i = 0; i < row.size(); ++i) out += cellMarkup(row[i], table.columns[i], numbers[i]);
        out += "</tr>\n";
    }
    return out + "</tbody></table></div>";
}

/// "12.3 to 12.9" of a quantity of the table of intervals; empty if there is none.
std::string intervalOf(const Report& report, const RunData& run, const char* quantity) {
    const Table* table = report.table("intervals");
    if (!table) return {};
    for (const auto& row : table->rows)
        if (raw(row[0]) == run.row.name && raw(row[1]) == quantity && row[3].isNumber())
            return fmt::format("95 %: {} to {}", display(row[3]), display(row[4]));
    return {};
}

std::string card(const Report& report, std::size_t index) {
    const RunData& run = report.runs[index];
    std::string out;
    put(out, "<section class=\"card {}\"><h3>{}</h3><p>{} · {} decode steps · {}</p><div class=\"facts\">",
        runClass(index), escaped(run.row.name), escaped(run.file), run.steps.size(),
        escaped(run.row.stale ? "interrupted" : run.row.status.text()));
    const auto fact = [&](const std::string& value, const std::string& caption) {
        put(out, "<div><b>{}</b><span>{}</span></div>", escaped(value), escaped(caption));
    };
    const Table& key = *report.table("key_numbers");
    const auto value = [&](const char* quantity) { return display((*key.find("quantity", quantity))[index + 1]); };
    const std::string interval = intervalOf(report, run, "Tokens per second");
    fact(value("Decode speed, tokens per second"),
         fmt::format("tokens per second of the steps' time, measured{}", interval.empty() ? "" : "; " + interval));
    if (run.summary.gapsMatter())
        fact(value("Decode speed with the time between steps"), "tokens per second by the clock, pauses counted");
    fact(value("Hit rate"), "hit rate, " + run.summary.ratesCount());
    fact(value("Locality γ, mean"), "mean locality γ");
    fact(value("Exposed transfer time"), "exposed transfer time, " + run.row.timing.text());
    return out + "</div></section>";
}

/// Sections and the navigation that lists them.
class Page {
public:
    void section(const std::string& id, const std::string& title, const std::string& content) {
        if (content.empty()) return;
        put(nav_, "<a href=\"#{}\">{}</a>", id, escaped(title));
        put(body_, "<h2 id=\"{0}\">{1}<a href=\"#{0}\" aria-label=\"Link to this section\">#</a></h2>{2}", id,
            escaped(title), content);
    }
    const std::string& nav() const { return nav_; }
    const std::string& body() const { return body_; }

private:
    std::string nav_, body_;
};

std::string withTable(const Report& report, const char* id, const std::string& chart = {}) {
    const Table* table = report.table(id);
    if (!table || table->rows.empty()) return chart;
    return "<p class=\"about\">" + escaped(table->about) + "</p>" + chart + tableMarkup(*table);
}

std::string withHeading(const Report& report, const char* id) {
    const Table* table = report.table(id);
    if (!table || table->rows.empty()) return {};
    return fmt::format("<h3 id=\"{}\">{}</h3>", id, escaped(table->title)) + withTable(report, id);
}

std::string folded(const Report& report, const char* id) {
    const Table* table = report.table(id);
    if (!table || table->rows.empty()) return {};
    return fmt::format("<details id=\"{}\"><summary>{}</summary>", id, escaped(table->title)) + withTable(report, id) +
           "</details>";
}

std::string commands(const Report& report) {
    const Table& table = *report.table("reproduce");
    std::string out = "<p class=\"about\">" + escaped(table.about) + "</p>";
    for (std::size_t i = 0; i < table.rows.size(); ++i) {
        const std::string command = raw(table.rows[i][1]);
        put(out, "<h3>{}</h3>", escaped(raw(table.rows[i][0])));
        if (!command.empty())
            put(out,
                "<pre><code id=\"command-{0}\">{1}</code></pre><div class=\"tools\"><button type=\"button\" "
                "data-copy=\"command-{0}\">Copy the command</button></div>",
                i, escaped(command));
        if (const std::string note = raw(table.rows[i][2]); !note.empty())
            put(out, "<p class=\"about\">{}</p>", escaped(note));
    }
    return out + "<details><summary>As a table</summary>" + tableMarkup(table) + "</details>";
}

/// The line to read first, of every run.
std::string headlines(const Report& report) {
    std::string out;
    for (std::size_t run = 0; run < report.runs.size(); ++run) {
        const ExposureReport& exposure = report.insights[run].exposure;
        if (exposure.headline.empty()) continue;
        const std::string name = report.runs.size() > 1 ? report.runs[run].row.name + ": " : "";
        put(out, "<p class=\"headline\">{}{}.<small>{}</small></p>", escaped(name), escaped(exposure.headline),
            escaped(exposure.detail));
    }
    return out;
}

std::string insightMarkup(const Report& report) {
    const Table& table = *report.table("insights");
    std::string out = "<p class=\"about\">" + escaped(table.about) + "</p>";
    for (std::size_t run = 0; run < report.runs.size(); ++run) {
        if (report.runs.size() > 1) put(out, "<h3>{}</h3>", escaped(report.runs[run].row.name));
        if (report.insights[run].insights.empty()) out += "<p>Nothing stands out.</p>";
        for (const Insight& insight : report.insights[run].insights)
            put(out, "<div class=\"insight {}\"><b>{}</b><span>{}</span><span class=\"advice\">{}</span></div>",
                nameOf(insight.severity), escaped(insight.title), escaped(insight.detail), escaped(insight.advice));
    }
    return table.rows.empty() ? out
                              : out + "<details><summary>As a table</summary>" + tableMarkup(table) + "</details>";
}

std::string verdictSentences(const Report& report) {
    std::string out;
    if (const Table* table = report.table("verdict"))
        for (const auto& row : table->rows)
            put(out, "<p class=\"headline\">{}.</p>", escaped(raw(row[std::size_t(table->columnAt("sentence"))])));
    return out;
}

std::string pictureMarkup(const std::vector<Picture>& pictures) {
    std::string out;
    for (const Picture& picture : pictures)
        put(out,
            "<figure><img alt=\"{0}\" width=\"{1}\" src=\"data:image/png;base64,{2}\"/><figcaption>{0}. "
            "{3}</figcaption></figure>",
            escaped(picture.title), picture.width, base64(picture.png), escaped(picture.caption));
    return out;
}

/// 16 random bytes, which the maker of the trace cannot know.
std::string nonce() {
    std::random_device random; // the system's own generator
    std::string bytes;
    for (int i = 0; i < 4; ++i)
        for (std::uint32_t word = random(), byte = 0; byte < 4; ++byte, word >>= 8) bytes += char(word & 0xff);
    return base64(bytes);
}

std::string definitionList() {
    std::string out = "<dl>";
    for (const Definition& definition : definitions())
        put(out, "<div id=\"d-{}\"><dt>{}</dt><dd>{}</dd></div>", definition.id, escaped(definition.title),
            escaped(definition.text));
    return out + "</dl>";
}

} // namespace

std::string html(const Report& report, const std::vector<Picture>& pictures) {
    std::string heats;
    for (std::size_t run = 0; run < report.runs.size(); ++run) heats += heatmap(report.runs[run], run);
    Page page;
    page.section("findings", "Insights", insightMarkup(report));
    page.section("key-numbers", "Key numbers", withTable(report, "key_numbers") + withHeading(report, "intervals"));
    page.section("serving", "Serving",
                 withHeading(report, "serving") + withHeading(report, "serving_classes") +
                     withHeading(report, "serving_plans"));
    page.section("comparison-of-runs", "Comparison of runs",
                 verdictSentences(report) + withTable(report, "comparison") + withHeading(report, "verdict") +
                     withHeading(report, "component_changes"));
    page.section("time", "Where the time goes", withTable(report, "breakdown", breakdownChart(report)));
    page.section("steps", "Step by step", stepCharts(report) + withHeading(report, "slowest_steps"));
    page.section("by-layer", "Layer by layer",
                 withTable(report, "layers", layerCharts(report)) + folded(report, "layer_stages"));
    page.section("heatmaps", "Layers over time", heats);
    page.section("link", "Transfers",
                 withTable(report, "transfers") + withHeading(report, "pcie_counters") +
                     withHeading(report, "exposure") + folded(report, "exposure_by_layer"));
    page.section("views", "Views", pictureMarkup(pictures));
    page.section("setup", "What ran", withTable(report, "configuration") + withHeading(report, "environment"));
    page.section("recording", "Health of the recording", withTable(report, "health"));
    page.section("again", "How to repeat it", commands(report));
    page.section("definitions", "Definitions", definitionList());

    std::string out = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
                      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>";
    const std::string pass = nonce(); // no script and no style but those two are ever run
    put(out,
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; base-uri 'none'; form-action "
        "'none'; style-src 'nonce-{0}'; script-src 'nonce-{0}'; img-src data:\"/>",
        pass);
    put(out,
        "<title>{} – KVScope report</title><style nonce=\"{}\">/*<![CDATA[*/\n{}/*]]>*/</style></head><body><div "
        "class=\"frame\">",
        escaped(report.title()), pass, *resources::text("report/report.css"));
    put(out,
        "<nav aria-label=\"Sections\"><b>KVScope report</b>{}</nav><main><h1>{}</h1><p class=\"lead\">Written {} "
        "UTC</p>",
        page.nav(), escaped(report.title()), escaped(report.createdUtc));
    for (const RunData& run : report.runs)
        if (const std::string loss = lossText(run); !loss.empty())
            put(out, "<p class=\"warning\">{}: {}.</p>", escaped(run.row.name), escaped(loss));
    out += headlines(report) + "<div class=\"cards\">";
    for (std::size_t run = 0; run < report.runs.size(); ++run) out += card(report, run);
    out += "</div><p class=\"about intro\">A run decodes text with a language model whose KV cache lies in host "
           "memory; every "
           "step attends to selected KV blocks, and those that are not on the device have to be fetched over a link. "
           "This page says how fast that was, where the time went, and which blocks had to be fetched. Point at charts "
           "for their numbers, click a heading to sort a table; every term is explained under <a "
           "href=\"#definitions\">Definitions</a>.</p>";
    out += page.body();
    put(out,
        "<footer>Written by KVScope. Times were measured unless marked: <span class=\"tag modelled\">modelled</span> "
        "is "
        "computed from recorded events and the stated link, <span class=\"tag predicted\">predicted</span> from a "
        "replay with other settings. This page is one file and fetches nothing.</footer></main></div><div id=\"tip\" "
        "role=\"tooltip\"></div><script nonce=\"{}\">//<![CDATA[\n{}//]]>\n</script></body></html>\n",
        pass, *resources::text("report/report.js"));
    return out;
}

void writeHtml(const Report& report, const std::string& path, const std::vector<Picture>& pictures) {
    const std::string page = html(report, pictures);
    const std::string failure = writeWholeFile(path, [&](std::ostream& out) { out << page; });
    if (!failure.empty())
        throw Error(ErrorKind::Storage, fmt::format("report file {}: {}", path, failure),
                    "choose a folder that exists, is writable and has space");
}

} // namespace kvscope::reports
