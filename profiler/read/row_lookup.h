// Finds the rows of a table that hold a value, where the file has no index of the column. It takes little memory,
// because in most files the rows are nearly in the order of the column.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace kvscope {

class RowLookup {
public:
    /// Adds the next row; ids ascend.
    void add(std::int64_t id, std::int64_t value);
    /// Ranges of ids, both ends included, ascending, in which all rows with this value lie. Other rows lie in them too,
    /// but few: of a segment that is nearly in order only the lowest and highest value of each zone are kept, of any
    /// other segment every row is.
    std::vector<std::pair<std::int64_t, std::int64_t>> find(std::int64_t value) const;
    std::size_t memoryBytes() const;

private:
    struct Row {
        std::int64_t id, value;
    };
    struct Zone { // neighbouring rows
        std::int64_t firstId, lastId, low, high;
    };
    struct Segment {
        std::int64_t firstId = 0;
        std::vector<Zone> zones;         // if the segment's rows are nearly in order
        std::vector<std::uint64_t> keys; // else: of each row the value's hash, and how far the id is from firstId
    };
    void close();

    std::vector<Segment> segments_;
    std::vector<Row> open_; // the rows added since the last segment
};

} // namespace kvscope
