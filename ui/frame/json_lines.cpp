#include "ui/frame/json_lines.h"

#include <nlohmann/json.hpp>

namespace kvscope::ui {

namespace {

struct Field {
    std::string text;
    bool quoted = false;
};

std::string quoted(const std::string& text) {
    return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string valueOf(const Field& field) {
    if (field.quoted) return quoted(field.text);
    if (field.text.empty()) return "null";
    const bool number =
        (field.text[0] == '-' || (field.text[0] >= '0' && field.text[0] <= '9')) && nlohmann::json::accept(field.text);
    return number ? field.text : quoted(field.text);
}

/// Returns the fields of the line that begins at `at`, and moves `at` to the next line. A quoted field may contain
/// commas and line ends.
std::vector<Field> fieldsAt(std::string_view csv, std::size_t& at) {
    std::vector<Field> fields(1);
    bool inside = false;
    for (; at < csv.size(); ++at) {
        const char c = csv[at];
        if (c == '"' && inside && at + 1 < csv.size() && csv[at + 1] == '"') {
            fields.back().text += '"';
            ++at;
        } else if (c == '"') {
            inside = !inside;
            fields.back().quoted = true;
        } else if (!inside && c == ',') {
            fields.emplace_back();
        } else if (!inside && c == '\n') {
            ++at;
            return fields;
        } else {
            fields.back().text += c;
        }
    }
    return fields;
}

} // namespace

std::string JsonLines::convert(std::string_view csv) {
    std::string out;
    for (std::size_t at = 0; at < csv.size();) {
        const std::vector<Field> fields = fieldsAt(csv, at);
        if (names_.empty()) {
            for (const Field& field : fields) names_.push_back(quoted(field.text));
            continue;
        }
        out += '{';
        for (std::size_t i = 0; i < fields.size() && i < names_.size(); ++i) {
            if (i > 0) out += ',';
            out += names_[i] + ':' + valueOf(fields[i]);
        }
        out += "}\n";
    }
    return out;
}

} // namespace kvscope::ui
