// A table with one line per quantity and one column per run.
#pragma once

#include "profiler/report/run_data.h"
#include "profiler/report/table.h"

#include <functional>
#include <string>
#include <vector>

namespace kvscope::reports {

class WideTable {
public:
    WideTable(const std::vector<RunData>& runs, std::string id, std::string title, std::string about);
    /// note: what the number is over.
    void add(const std::string& name, const std::string& note, const std::function<Cell(const RunData&)>& value);
    void add(const std::string& name, const std::string& note, std::vector<Cell> values);
    Table take() { return std::move(table_); }

private:
    const std::vector<RunData>& runs_;
    Table table_;
};

} // namespace kvscope::reports
