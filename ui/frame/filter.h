// The filter says what the views count: which layers, KV heads and steps, which component, and which text. The cursor
// says where the user looks. Zooming changes what is seen, but the filter changes numbers, so a view that applies the
// filter says so under its plot.
#pragma once

#include <QString>

#include <optional>
#include <utility>
#include <vector>

namespace kvscope::ui {

/// A set of indices counted from 0, such as "0-3, 7". The empty set stands for all indices.
class IndexSet {
public:
    IndexSet() = default;
    /// `ranges` are inclusive and in any order. Overlapping and adjacent ranges are joined.
    explicit IndexSet(std::vector<std::pair<int, int>> ranges);
    /// Reads a text such as "0-3, 7". "5-" means 5 and all higher indices, "" all indices. Nothing if the text has
    /// another form.
    static std::optional<IndexSet> fromText(const QString& text);
    QString text() const;

    bool all() const { return ranges_.empty(); }
    bool contains(int index) const; // always true if all()
    /// The indices of 0..count-1 that the set contains, ascending.
    std::vector<int> of(int count) const;
    const std::vector<std::pair<int, int>>& ranges() const { return ranges_; } // ascending, inclusive
    bool operator==(const IndexSet&) const = default;

private:
    std::vector<std::pair<int, int>> ranges_;
};

/// The filter that all views share through Workspace::filter. The default filter leaves everything in.
struct Filter {
    IndexSet layers, kvHeads, steps;
    QString component; // name of a stage (core/trace/stage.h) or `other`; empty: all
    /// Searched in the names of spans and the texts of tokens and blocks. Upper and lower case are not distinguished.
    QString text;

    bool empty() const { return *this == Filter{}; }
    bool hasLayer(int layer) const { return layers.contains(layer); }
    bool hasKvHead(int head) const { return kvHeads.contains(head); }
    bool hasStep(int step) const { return steps.contains(step); }
    bool hasComponent(const QString& name) const { return component.isEmpty() || component == name; }
    bool hasText(const QString& value) const { return text.isEmpty() || value.contains(text, Qt::CaseInsensitive); }
    bool operator==(const Filter&) const = default;
};

/// The parts of the filter, to say which of them a view applies.
enum FilterPart { FilterLayers = 1, FilterKvHeads = 2, FilterSteps = 4, FilterComponent = 8, FilterText = 16 };

/// A sentence for below a plot, such as "Filtered: layers 0-3, steps 100-200.", about the parts that are set and
/// applied. The parts that are set but not applied are named too, so that no number looks filtered that is not. Empty
/// if no part is set.
QString filterNote(const Filter& filter, int appliedParts);

} // namespace kvscope::ui
