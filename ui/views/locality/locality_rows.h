// The rows of the locality heatmap: which there are, what they are called, which count and in which order they lie.
#pragma once

#include "profiler/read/filtered.h"
#include "profiler/tiles/heat_tile.h"
#include "ui/frame/workspace.h"

#include <QStringList>

#include <optional>
#include <vector>

namespace kvscope::ui {

class LocalityRows {
public:
    enum class Kind { Layers, LayersOfHead, HeadsOfLayer };
    enum class Sort { AsRecorded, HighestFirst, LowestFirst };
    struct Shown {
        Kind kind = Kind::Layers;
        int sequence = -1; // -1: all of them
        int layer = 0, kvHead = 0;
        int kvHeads = 1; // of the run
    };
    /// Begins anew with the first `count` rows of the data, in their order and without those that the filter leaves
    /// out.
    void reset(const Shown& shown, int count, const ReadFilter& filter);
    void clear() { reset({}, 0, {}); }

    const Shown& shown() const { return shown_; }
    const QStringList& names() const { return names_; } // of every row of the data, "layer 3"
    const QString& axisTitle() const { return axisTitle_; }
    QString tick(int row) const { return ticks_.value(row); } // "3"
    /// The row's title with what all rows have in common, "layer 3, KV head 1".
    QString title(int row) const;

    /// The row of the data at every place; empty: the rows lie in the order of the data.
    const std::vector<int>& order() const { return order_; }
    /// The place of a row; absent: the filter leaves the row out.
    std::optional<int> placeOf(int row) const;
    /// Sorts the rows. stats: of every row of the data; empty: the rows get the order in which they were recorded.
    void sort(Sort sort, NumberedSpan<const CellStats> stats);

    /// The cursor's row; absent: it points to a sequence that is not shown.
    std::optional<int> rowOf(const Cursor& cursor) const;
    /// Moves the cursor to a row.
    void point(Cursor& cursor, int row) const;

private:
    void name(int count);

    Shown shown_;
    QStringList names_, ticks_;
    QString axisTitle_;
    std::vector<int> counted_, order_; // counted: those that the filter leaves in; empty: all
};

} // namespace kvscope::ui
