// Which rows of a table hold a value, where the file has no index of that column: small, because most files are nearly
// in its order.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace kvscope {

class RowLookup {
public:
    /// The next row; ids ascend.
    void add(std::int64_t id, std::int64_t value);
    /// Ids, both ends included and ascending, between which every row with this value lies. Few more than those: a
    /// stretch that is in order says only from where to where its values go, another knows each of its rows.
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
        std::vector<Zone> zones;         // if its rows are nearly in order
        std::vector<std::uint64_t> keys; // else: what a value is mixed to, and how far its row is from the first
    };
    void close();

    std::vector<Segment> segments_;
    std::vector<Row> open_; // the rows since
};

} // namespace kvscope
