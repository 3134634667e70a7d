#include "profiler/sql/format_document.h"

#include "resources/resources.h"

#include <map>
#include <vector>

namespace kvscope {
namespace {

struct Section {
    std::string help;
    std::map<std::string, ColumnHelp, std::less<>> columns;
};

std::string_view trimmed(std::string_view text) {
    while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
    while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
    return text;
}

/// The text without the marks of Markdown: `code`, **strong**, [text](address), \\|.
std::string plain(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '`' || text[i] == '*') continue;
        if (text[i] == '\\' && i + 1 < text.size() && text[i + 1] == '|') continue;
        if (text[i] == '[') continue;
        if (text[i] == ']') {
            if (i + 1 < text.size() && text[i + 1] == '(') i = std::min(text.find(')', i), text.size() - 1);
            continue;
        }
        out += text[i];
    }
    return out;
}

/// Cells of "| a | b | c |"; a bar after a backslash is text.
std::vector<std::string_view> cellsOf(std::string_view line) {
    std::vector<std::string_view> cells;
    std::size_t begin = 1;
    for (std::size_t i = 1; i < line.size(); ++i) {
        if (line[i] != '|' || line[i - 1] == '\\') continue;
        cells.push_back(trimmed(line.substr(begin, i - begin)));
        begin = i + 1;
    }
    return cells;
}

std::map<std::string, Section, std::less<>> parse(std::string_view text) {
    std::map<std::string, Section, std::less<>> sections;
    Section* current = nullptr;
    bool paragraph = false; // still in the section's first one
    for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = std::min(text.find('\n', begin), text.size());
        const std::string_view line = text.substr(begin, end - begin);
        begin = end + 1;
        if (line.starts_with("### `")) {
            current = &sections[std::string(line.substr(5, line.find('`', 5) - 5))];
            paragraph = true;
        } else if (line.starts_with("#")) {
            current = nullptr;
        } else if (current && line.starts_with("|")) {
            paragraph = false;
            const auto cells = cellsOf(line);
            if (cells.size() >= 3 && cells[0].starts_with("`"))
                current->columns[plain(cells[0])] = {plain(cells[1]), plain(cells[2])};
        } else if (current && paragraph) {
            if (trimmed(line).empty())
                paragraph = current->help.empty();
            else
                current->help += (current->help.empty() ? "" : " ") + plain(trimmed(line));
        }
    }
    return sections;
}

const std::map<std::string, Section, std::less<>>& document() {
    static const auto sections = parse(resources::text("docs/trace-format.md").value_or(""));
    return sections;
}

/// The view that shows a table's columns under the same names.
std::string_view viewOf(std::string_view table) {
    static const std::map<std::string_view, std::string_view> views{
        {"run", "runs"},           {"health", "runs"},          {"step", "v_step"},
        {"layer_step", "v_layer"}, {"selection", "v_locality"}, {"token", "v_token"},
        {"prompt", "v_prompt"},    {"span", "v_span"}};
    const auto found = views.find(table);
    return found == views.end() ? std::string_view() : found->second;
}

} // namespace

std::string tableHelp(std::string_view table) {
    const auto section = document().find(table);
    return section == document().end() ? std::string() : section->second.help;
}

ColumnHelp columnHelp(std::string_view table, std::string_view column) {
    ColumnHelp help;
    for (const std::string_view name : {table, viewOf(table)}) {
        const auto section = document().find(name);
        if (section == document().end()) continue;
        const auto found = section->second.columns.find(column);
        if (found == section->second.columns.end()) continue;
        if (help.type.empty()) help.type = found->second.type;
        const bool refers = help.meaning.empty() || help.meaning.starts_with("as in");
        if (refers && !found->second.meaning.empty()) help.meaning = found->second.meaning;
    }
    return help;
}

} // namespace kvscope
