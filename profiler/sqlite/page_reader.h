// Reads rows of an SQLite file that nobody is writing, page by page, without a connection.
//
// A connection parses all of a file's CREATE statements before its first row: about a millisecond for a trace, which
// has fifty of them. Code that needs five rows of each of ten thousand files reads them with this, and opens with
// SQLite only the files that are refused here. https://www.sqlite.org/fileformat2.html has the format; sections are
// named below.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

/// One row of a table. Columns count from 0, in the order of the CREATE statement.
class PageRow {
public:
    std::int64_t rowid = 0; // 0 in a table without
    /// Nothing: NULL, another type, or a column that the row does not have.
    std::optional<std::int64_t> integer(std::size_t column) const;
    std::optional<std::string_view> text(std::size_t column) const; // valid during the call that lends the row

private:
    friend class PageReader;
    struct Value {
        enum class Kind { Null, Integer, Text, Other } kind = Kind::Null;
        std::int64_t integer = 0;
        std::string_view text;
    };
    std::vector<Value> values_;
};

/// Every function throws Error(Unsupported) where the file is not as plain as the format's first pages describe: it is
/// damaged, being written, of another encoding, or larger than is read here. SQLite then says what is the matter.
class PageReader {
public:
    struct Table {
        std::uint32_t root = 0;
        std::vector<std::string> columns;
        bool rowidFirst = false;   // the first column is INTEGER PRIMARY KEY, so it is the rowid
        bool withoutRowid = false; // rows lie in the b-tree of the primary key
    };
    explicit PageReader(const std::string& path);
    ~PageReader();
    PageReader(const PageReader&) = delete;
    PageReader& operator=(const PageReader&) = delete;

    std::uint32_t applicationId() const;
    std::uint32_t userVersion() const;
    std::uint64_t bytes() const { return bytes_; }
    bool has(std::string_view table) const { return tables_.contains(table); }
    /// Null: there is no ordinary table of this name.
    const Table* find(std::string_view table) const;
    /// Calls `row` with each row in the order of keys.
    void rows(const Table& table, const std::function<void(const PageRow& row)>& row) const;
    /// Largest rowid of [lowest, highest].
    std::optional<std::int64_t> lastRowid(const Table& table, std::int64_t lowest, std::int64_t highest) const;
    /// Whether the file was written since it was opened: what was read may not belong together.
    bool changed() const;

private:
    using Page = std::vector<std::byte>;
    Page page(std::uint32_t number) const;
    void readHeader();
    void readSchema();
    void walk(std::uint32_t number, int depth, const std::function<void(const PageRow& row)>& row) const;
    std::optional<std::int64_t> last(std::uint32_t number, std::int64_t highest, int depth) const;
    void decode(const Page& page, std::size_t at, bool index, PageRow& row, std::vector<std::byte>& whole) const;
    bool hasCompanion() const;

    std::string path_;
    int file_ = -1;
    std::uint64_t bytes_ = 0;
    std::vector<std::byte> header_; // the first 100 bytes
    std::uint32_t pageSize_ = 0, pages_ = 0, usable_ = 0;
    struct Known {
        std::string sql; // of its CREATE statement; empty once that was read
        Table table;
    };
    mutable std::map<std::string, Known, std::less<>> tables_; // a statement is read when its table is wanted
    mutable int visited_ = 0;                                  // pages
};

} // namespace kvscope
