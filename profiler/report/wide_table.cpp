#include "profiler/report/wide_table.h"

#include <algorithm>

namespace kvscope::reports {

WideTable::WideTable(const std::vector<RunData>& runs, std::string id, std::string title, std::string about)
    : runs_(runs) {
    table_ = {std::move(id), std::move(title), std::move(about), {{"quantity", "", "", false}}, {}};
    for (const RunData& run : runs) table_.columns.push_back({run.row.name, run.row.name, "", false});
    table_.columns.push_back({"unit", "Unit", "", true});
    table_.columns.push_back({"basis", "Basis", "", true});
    table_.columns.push_back({"note", "", "", false});
}

void WideTable::add(const std::string& name, const std::string& note,
                    const std::function<Cell(const RunData&)>& value) {
    std::vector<Cell> values;
    for (const RunData& run : runs_) values.push_back(value(run));
    add(name, note, std::move(values));
}

void WideTable::add(const std::string& name, const std::string& note, std::vector<Cell> values) {
    std::string unit;
    std::vector<std::string> bases; // one word if all runs agree, else one per run
    for (const Cell& cell : values) {
        if (unit.empty()) unit = unitOf(cell.quantity);
        bases.emplace_back(nameOf(cell.basis));
    }
    std::string basis;
    const bool same = std::all_of(bases.begin(), bases.end(), [&](const auto& word) { return word == bases.front(); });
    for (std::size_t i = 0; i < (same ? std::min<std::size_t>(1, bases.size()) : bases.size()); ++i)
        basis += (i > 0 ? " / " : "") + bases[i];
    std::vector<Cell> row{text(name)};
    for (Cell& cell : values) row.push_back(std::move(cell));
    row.push_back(text(unit));
    row.push_back(text(basis));
    row.push_back(text(note));
    table_.rows.push_back(std::move(row));
}

} // namespace kvscope::reports
