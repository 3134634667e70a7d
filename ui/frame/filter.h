// What the views count, beside the cursor that says where one looks: layers, KV heads, steps, a component, a text.
// Zooming changes what is seen; the filter changes numbers, so a view that applies it says so under its plot.
#pragma once

#include <QString>

#include <optional>
#include <utility>
#include <vector>

namespace kvscope::ui {

/// Some indices of something counted from 0: "0-3, 7". Empty means all of them.
class IndexSet {
public:
    IndexSet() = default;
    /// Inclusive ranges in any order; overlapping and adjacent ones become one.
    explicit IndexSet(std::vector<std::pair<int, int>> ranges);
    /// "0-3, 7", "5-" to the end, "" for all. Nothing: not such a text.
    static std::optional<IndexSet> fromText(const QString& text);
    QString text() const;

    bool all() const { return ranges_.empty(); }
    bool contains(int index) const; // true of everything when all()
    /// Indices of 0..count-1 that are in it, ascending.
    std::vector<int> of(int count) const;
    const std::vector<std::pair<int, int>>& ranges() const { return ranges_; } // ascending, inclusive
    bool operator==(const IndexSet&) const = default;

private:
    std::vector<std::pair<int, int>> ranges_;
};

/// Shared by all views through Workspace::filter; a default one leaves everything in.
struct Filter {
    IndexSet layers, kvHeads, steps;
    QString component; // name of a stage (core/trace/stage.h) or `other`; empty: all
    QString text;      // looked for in names of spans, text of tokens and blocks; case does not matter

    bool empty() const { return *this == Filter{}; }
    bool hasLayer(int layer) const { return layers.contains(layer); }
    bool hasKvHead(int head) const { return kvHeads.contains(head); }
    bool hasStep(int step) const { return steps.contains(step); }
    bool hasComponent(const QString& name) const { return component.isEmpty() || component == name; }
    bool hasText(const QString& value) const { return text.isEmpty() || value.contains(text, Qt::CaseInsensitive); }
    bool operator==(const Filter&) const = default;
};

/// Which parts of the filter a view applies.
enum FilterPart { FilterLayers = 1, FilterKvHeads = 2, FilterSteps = 4, FilterComponent = 8, FilterText = 16 };

/// "Filtered: layers 0-3, steps 100-200." of the parts that are set and applied; empty if none is. What is set but not
/// applied here is said too, so that no number looks filtered that is not.
QString filterNote(const Filter& filter, int appliedParts);

} // namespace kvscope::ui
