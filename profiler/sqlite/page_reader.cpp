#include "profiler/sqlite/page_reader.h"

#include "base/error.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kvscope {
namespace {

constexpr std::size_t kFileHeader = 100;
constexpr int kDeepest = 12;                 // levels of a b-tree; a file of terabytes has six
constexpr int kMostPages = 4096;             // of all that is read of one file
constexpr std::uint64_t kLongestRow = 65536; // bytes

[[noreturn]] void notPlain(const std::string& path, const char* why) {
    throw Error(ErrorKind::Unsupported, fmt::format("{} is not read page by page: {}", path, why));
}

std::uint32_t bigEndian(std::span<const std::byte> bytes, std::size_t at, std::size_t count) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < count; ++i) value = value << 8 | std::to_integer<std::uint32_t>(bytes[at + i]);
    return value;
}

/// Section 1.6, "varint": seven bits a byte, the ninth byte has eight. Moves `at` behind it. @return false: cut short
bool readVarint(std::span<const std::byte> bytes, std::size_t& at, std::uint64_t& value) {
    value = 0;
    for (int i = 0; i < 9; ++i) {
        if (at >= bytes.size()) return false;
        const auto byte = std::to_integer<std::uint64_t>(bytes[at++]);
        if (i == 8) {
            value = value << 8 | byte;
            return true;
        }
        value = value << 7 | (byte & 0x7F);
        if ((byte & 0x80) == 0) return true;
    }
    return true;
}

/// The names of the columns in a CREATE TABLE statement, and what its first column and its end say.
PageReader::Table tableOf(std::string_view sql) {
    std::string plain; // without comments, in lower case
    for (std::size_t i = 0; i < sql.size(); ++i) {
        if (sql.substr(i, 2) == "--") {
            i = std::min(sql.find('\n', i), sql.size());
            plain += ' ';
        } else {
            plain += char(std::tolower(static_cast<unsigned char>(sql[i])));
        }
    }
    PageReader::Table table;
    const std::size_t open = plain.find('(');
    if (open == std::string::npos) return table;
    std::vector<std::string> parts{{}};
    std::size_t at = open + 1;
    for (int depth = 0; at < plain.size(); ++at) {
        const char c = plain[at];
        if (c == ')' && depth == 0) break;
        if (c == '(') ++depth;
        if (c == ')') --depth;
        if (c == ',' && depth == 0)
            parts.emplace_back();
        else
            parts.back() += c;
    }
    constexpr const char* kBlank = " \t\r\n";
    for (const std::string& part : parts) {
        const std::size_t begin = part.find_first_not_of(kBlank);
        if (begin == std::string::npos) continue;
        const std::size_t end = std::min(part.find_first_of(kBlank, begin), part.size());
        const std::string name = part.substr(begin, end - begin);
        if (name == "primary" || name == "unique" || name == "check" || name == "foreign" || name == "constraint")
            continue;
        if (table.columns.empty()) {
            std::string rule;
            for (const char c : part.substr(end))
                if (std::strchr(kBlank, c) == nullptr) rule += c;
            table.rowidFirst = rule.starts_with("integerprimarykey");
        }
        table.columns.push_back(name);
    }
    table.withoutRowid = plain.find("without", at) != std::string::npos;
    return table;
}

} // namespace

std::optional<std::int64_t> PageRow::integer(std::size_t column) const {
    if (column >= values_.size() || values_[column].kind != Value::Kind::Integer) return std::nullopt;
    return values_[column].integer;
}

std::optional<std::string_view> PageRow::text(std::size_t column) const {
    if (column >= values_.size() || values_[column].kind != Value::Kind::Text) return std::nullopt;
    return values_[column].text;
}

PageReader::PageReader(const std::string& path) : path_(path) {
    file_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file_ < 0) notPlain(path_, "it cannot be opened");
    try {
        struct stat status {};
        if (fstat(file_, &status) != 0 || !S_ISREG(status.st_mode)) notPlain(path_, "it is not a file");
        bytes_ = std::uint64_t(status.st_size);
        readHeader();
        if (hasCompanion()) notPlain(path_, "a part of it is in another file");
        readSchema();
    } catch (...) {
        close(file_);
        throw;
    }
}

PageReader::~PageReader() { close(file_); }

/// A log, or a journal of somebody who writes the file or was killed while writing it.
bool PageReader::hasCompanion() const {
    struct stat status {};
    return (stat((path_ + "-wal").c_str(), &status) == 0 && status.st_size > 0) ||
           stat((path_ + "-journal").c_str(), &status) == 0;
}

bool PageReader::changed() const {
    std::byte now[kFileHeader];
    return pread(file_, now, sizeof now, 0) != ssize_t(sizeof now) ||
           std::memcmp(now, header_.data(), sizeof now) != 0 || hasCompanion();
}

/// Section 1.3, the file's header.
void PageReader::readHeader() {
    header_.resize(kFileHeader);
    if (pread(file_, header_.data(), kFileHeader, 0) != ssize_t(kFileHeader) ||
        std::memcmp(header_.data(), "SQLite format 3", 16) != 0)
        notPlain(path_, "it has no header");
    pageSize_ = bigEndian(header_, 16, 2);
    if (pageSize_ == 1) pageSize_ = 65536;
    pages_ = bigEndian(header_, 28, 4);
    const bool counted = bigEndian(header_, 24, 4) == bigEndian(header_, 92, 4);
    const std::uint32_t reserved = bigEndian(header_, 20, 1);
    if (pageSize_ < 512 || (pageSize_ & (pageSize_ - 1)) != 0 || reserved > 64 || !counted || pages_ == 0 ||
        bytes_ < std::uint64_t(pages_) * pageSize_)
        notPlain(path_, "its header is unusual");
    if (bigEndian(header_, 56, 4) != 1) notPlain(path_, "its texts are not UTF-8");
    usable_ = pageSize_ - reserved;
}

std::uint32_t PageReader::applicationId() const { return bigEndian(header_, 68, 4); }
std::uint32_t PageReader::userVersion() const { return bigEndian(header_, 60, 4); }

PageReader::Page PageReader::page(std::uint32_t number) const {
    if (number < 1 || number > pages_) notPlain(path_, "a page is behind its end");
    if (++visited_ > kMostPages) notPlain(path_, "it has too many pages");
    Page bytes(pageSize_);
    if (pread(file_, bytes.data(), pageSize_, off_t(number - 1) * off_t(pageSize_)) != ssize_t(pageSize_))
        notPlain(path_, "a page cannot be read");
    return bytes;
}

const PageReader::Table* PageReader::find(std::string_view table) const {
    const auto found = tables_.find(table);
    if (found == tables_.end()) return nullptr;
    Known& known = found->second;
    if (!known.sql.empty()) {
        const std::uint32_t root = known.table.root;
        known.table = tableOf(known.sql);
        known.table.root = root;
        known.sql.clear();
    }
    return &known.table;
}

/// Section 2.6: the schema is the table on page 1, with columns type, name, tbl_name, rootpage, sql.
void PageReader::readSchema() {
    walk(1, 0, [this](const PageRow& row) {
        const auto type = row.text(0), name = row.text(1), sql = row.text(4);
        const auto root = row.integer(3);
        if (type != "table" || !name || !sql || !root || *root < 1 || *root > std::int64_t(pages_)) return;
        Known known;
        known.sql = *sql;
        known.table.root = std::uint32_t(*root);
        tables_.emplace(std::string(*name), std::move(known));
    });
}

void PageReader::rows(const Table& table, const std::function<void(const PageRow& row)>& row) const {
    walk(table.root, 0, row);
}

/// Section 1.6, pages of b-trees. The rows of a table lie in its leaves; those of a table without rowid in all pages.
void PageReader::walk(std::uint32_t number, int depth, const std::function<void(const PageRow& row)>& row) const {
    if (depth > kDeepest) notPlain(path_, "a b-tree is too deep");
    const Page bytes = page(number);
    const std::size_t begin = number == 1 ? kFileHeader : 0;
    const std::uint32_t kind = bigEndian(bytes, begin, 1);
    const bool index = kind == 2 || kind == 10, leaf = kind == 10 || kind == 13;
    if (!index && !leaf && kind != 5) notPlain(path_, "a page is of no known kind");
    const std::size_t cells = bigEndian(bytes, begin + 3, 2), pointers = begin + (leaf ? 8 : 12);
    if (pointers + 2 * cells > usable_) notPlain(path_, "a page has too many cells");
    PageRow decoded;
    std::vector<std::byte> whole;
    for (std::size_t cell = 0; cell < cells; ++cell) {
        std::size_t at = bigEndian(bytes, pointers + 2 * cell, 2);
        if (at + 4 > usable_) notPlain(path_, "a cell is behind the end of its page");
        if (!leaf) {
            walk(bigEndian(bytes, at, 4), depth + 1, row);
            at += 4;
        }
        if (!leaf && !index) continue;
        decode(bytes, at, index, decoded, whole);
        row(decoded);
    }
    if (!leaf) walk(bigEndian(bytes, begin + 8, 4), depth + 1, row);
}

std::optional<std::int64_t> PageReader::lastRowid(const Table& table, std::int64_t lowest, std::int64_t highest) const {
    const auto found = last(table.root, highest, 0);
    return found && *found >= lowest ? found : std::nullopt;
}

/// Largest rowid up to `highest` below a page of a table.
std::optional<std::int64_t> PageReader::last(std::uint32_t number, std::int64_t highest, int depth) const {
    if (depth > kDeepest) notPlain(path_, "a b-tree is too deep");
    const Page bytes = page(number);
    const std::size_t begin = number == 1 ? kFileHeader : 0;
    const std::uint32_t kind = bigEndian(bytes, begin, 1);
    if (kind != 5 && kind != 13) notPlain(path_, "a page is of no table");
    const bool leaf = kind == 13;
    const std::size_t cells = bigEndian(bytes, begin + 3, 2), pointers = begin + (leaf ? 8 : 12);
    if (pointers + 2 * cells > usable_) notPlain(path_, "a page has too many cells");
    const auto keyOf = [&](std::size_t cell) {
        std::size_t at = bigEndian(bytes, pointers + 2 * cell, 2);
        std::uint64_t value = 0;
        if (!leaf) at += 4;
        if (leaf && !readVarint(bytes, at, value)) notPlain(path_, "a cell is cut short");
        if (!readVarint(bytes, at, value)) notPlain(path_, "a cell is cut short");
        return std::int64_t(value);
    };
    const auto childOf = [&](std::size_t cell) {
        if (cell == cells) return bigEndian(bytes, begin + 8, 4);
        const std::size_t at = bigEndian(bytes, pointers + 2 * cell, 2);
        if (at + 4 > usable_) notPlain(path_, "a cell is behind the end of its page");
        return bigEndian(bytes, at, 4);
    };
    // The first cell whose key is above `highest`; in an interior page a key is the largest of its child.
    std::size_t low = 0, high = cells;
    while (low < high) {
        const std::size_t middle = (low + high) / 2;
        if (leaf ? keyOf(middle) > highest : keyOf(middle) >= highest)
            high = middle;
        else
            low = middle + 1;
    }
    if (leaf) return low == 0 ? std::nullopt : std::optional(keyOf(low - 1));
    if (const auto found = last(childOf(low), highest, depth + 1)) return found;
    return low == 0 ? std::nullopt : last(childOf(low - 1), highest, depth + 1);
}

/// Sections 1.6 and 2.1: the row of the cell at `at`.
void PageReader::decode(const Page& bytes, std::size_t at, bool index, PageRow& row,
                        std::vector<std::byte>& whole) const {
    const std::span<const std::byte> page(bytes.data(), usable_);
    std::uint64_t length = 0, rowid = 0;
    if (!readVarint(page, at, length) || (!index && !readVarint(page, at, rowid)))
        notPlain(path_, "a cell is cut short");
    row.rowid = std::int64_t(rowid);
    const std::uint64_t most = index ? (usable_ - 12) * 64 / 255 - 23 : usable_ - 35;
    if (length > kLongestRow) notPlain(path_, "a row is too long");
    std::span<const std::byte> payload;
    if (length <= most) {
        if (at + length > page.size()) notPlain(path_, "a row is cut short");
        payload = page.subspan(at, std::size_t(length));
    } else { // the rest is in a chain of pages of its own
        const std::uint64_t least = (usable_ - 12) * 32 / 255 - 23;
        std::uint64_t here = least + (length - least) % (usable_ - 4);
        if (here > most) here = least;
        if (at + here + 4 > page.size()) notPlain(path_, "a row is cut short");
        whole.assign(page.begin() + std::ptrdiff_t(at), page.begin() + std::ptrdiff_t(at + here));
        std::uint32_t next = bigEndian(page, at + std::size_t(here), 4);
        while (whole.size() < length) {
            const Page more = this->page(next);
            const std::size_t part = std::min<std::size_t>(std::size_t(length) - whole.size(), usable_ - 4);
            whole.insert(whole.end(), more.begin() + 4, more.begin() + 4 + std::ptrdiff_t(part));
            next = bigEndian(more, 0, 4);
        }
        payload = whole;
    }
    std::size_t header = 0;
    std::uint64_t headerBytes = 0;
    if (!readVarint(payload, header, headerBytes) || headerBytes > payload.size())
        notPlain(path_, "a row has no header");
    std::size_t body = std::size_t(headerBytes);
    row.values_.clear();
    while (header < headerBytes) {
        std::uint64_t type = 0;
        if (!readVarint(payload.first(std::size_t(headerBytes)), header, type)) notPlain(path_, "a row is cut short");
        constexpr std::size_t kBytes[] = {0, 1, 2, 3, 4, 6, 8, 8, 0, 0};
        const std::size_t size = type < 10 ? kBytes[type] : std::size_t((type - 12) / 2);
        if (type == 10 || type == 11 || size > payload.size() - body) notPlain(path_, "a row is cut short");
        PageRow::Value value;
        if (type >= 13 && type % 2 == 1) {
            value.kind = PageRow::Value::Kind::Text;
            value.text = {reinterpret_cast<const char*>(payload.data() + body), size};
        } else if (type == 8 || type == 9) {
            value.kind = PageRow::Value::Kind::Integer;
            value.integer = std::int64_t(type) - 8;
        } else if (type >= 1 && type <= 6) {
            value.kind = PageRow::Value::Kind::Integer;
            std::uint64_t bits = std::to_integer<unsigned>(payload[body]) >= 0x80 ? ~std::uint64_t(0) : 0;
            for (std::size_t i = 0; i < size; ++i) bits = bits << 8 | std::to_integer<std::uint64_t>(payload[body + i]);
            value.integer = std::int64_t(bits);
        } else if (type != 0) {
            value.kind = PageRow::Value::Kind::Other;
        }
        row.values_.push_back(value);
        body += size;
    }
}

} // namespace kvscope
