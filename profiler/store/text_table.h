// The trace's table of texts: every text is stored once, and other rows name it by its id.
#pragma once

#include "profiler/sqlite/sqlite.h"

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace kvscope {

class TextTable {
public:
    TextTable() = default;
    /// The connection must outlive this object, and have the table.
    explicit TextTable(Connection& connection);

    /// Adds the text in the open transaction if it is new. @throws Error(Storage)
    std::int64_t idOf(std::string_view value);
    /// After a rollback: resets the statements that an error has interrupted, and forgets all ids, because some of them
    /// may have been rolled back.
    void reset();

private:
    Statement insert_, find_;
    std::map<std::string, std::int64_t, std::less<>> ids_;
};

} // namespace kvscope
