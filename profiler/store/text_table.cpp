#include "profiler/store/text_table.h"

namespace kvscope {

TextTable::TextTable(Connection& connection)
    : insert_(connection, "INSERT INTO text(value) VALUES (?) ON CONFLICT DO NOTHING", true),
      find_(connection, "SELECT id FROM text WHERE value = ?", true) {}

std::int64_t TextTable::idOf(std::string_view value) {
    if (const auto known = ids_.find(value); known != ids_.end()) return known->second;
    insert_.bindAll(value).run();
    find_.bindAll(value);
    find_.step();
    const std::int64_t id = find_.int64(0);
    find_.reset();
    return ids_[std::string(value)] = id;
}

void TextTable::reset() {
    insert_.reset();
    find_.reset();
    ids_.clear();
}

} // namespace kvscope
