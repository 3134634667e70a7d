// What the page Difference reads of two runs: for each pair of steps and each layer the values of both.
#pragma once

#include "profiler/compare/alignment.h"
#include "profiler/compare/difference.h"
#include "profiler/compare/overlap.h"
#include "ui/frame/filter.h"
#include "ui/frame/numbers.h"

#include <qcustomplot.h>

#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace kvscope::ui {

struct DifferenceRequest {
    int runA = 0, runB = 0;
    bool overlap = false; // the overlap of the selections is read, and no metric
    Metric metric = Metric::Locality;
    Filter filter;                  // layers and KV heads
    ReadFilter read;                // the same filter, as reads apply it
    int kvHeads = 0, sequence = -1; // sequence -1: all of them
    double factor = 1;              // the metric's values are multiplied by it
};

/// The values of some neighbouring pairs of steps. A value that the filter leaves out is NaN.
struct DifferenceChunk {
    SelectionCoverage coverage; // of an overlap
    int layers = 0;
    std::vector<float> values, a, b; // [pair][layer]; a and b are empty for an overlap
};

/// Reads the values of these pairs, on a worker thread. @throws Error as TraceReader does
DifferenceChunk readDifference(const DifferenceRequest& request, const TraceReader& a, const TraceReader& b,
                               NumberedSpan<const StepPair> pairs);

/// The values of both runs, in the pieces in which they were read. Pieces never change, so that a copy of this object
/// can be read on another thread.
class DifferenceValues {
public:
    void add(PairMatrix piece) {
        for (std::size_t i = 0; i < piece.a.size(); ++i) {
            const bool hasA = !std::isnan(piece.a[i]), hasB = !std::isnan(piece.b[i]);
            definedA_ |= hasA;
            definedB_ |= hasB;
            definedInBoth_ |= hasA && hasB;
        }
        begins_.push_back(pairs_);
        pairs_ += piece.pairs;
        all_.push_back(std::make_shared<const PairMatrix>(std::move(piece)));
    }
    /// A's value and B's, of one pair of steps and one layer.
    std::pair<double, double> at(int pair, int layer) const {
        const auto after = std::upper_bound(begins_.begin(), begins_.end(), pair);
        const int piece = int(after - begins_.begin()) - 1;
        const PairMatrix& matrix = *all_[piece];
        const std::size_t cell = matrix.extents().offset(pair - begins_[piece], layer);
        return {double(matrix.a[cell]), double(matrix.b[cell])};
    }
    int layers() const { return all_.empty() ? 0 : all_.front()->layers; }
    /// Whether some pair and layer has a value in A, in B, in both.
    bool definedA() const { return definedA_; }
    bool definedB() const { return definedB_; }
    bool definedInBoth() const { return definedInBoth_; }
    PairMatrix joined() const {
        PairMatrix whole;
        whole.pairs = pairs_;
        whole.layers = layers();
        for (const auto& piece : all_) {
            whole.a.insert(whole.a.end(), piece->a.begin(), piece->a.end());
            whole.b.insert(whole.b.end(), piece->b.begin(), piece->b.end());
        }
        return whole;
    }

private:
    Numbered<std::shared_ptr<const PairMatrix>> all_;
    Numbered<int> begins_; // first pair of each
    int pairs_ = 0;
    bool definedA_ = false, definedB_ = false, definedInBoth_ = false;
};

/// Writes the pairs whose place is in `visible`: a line for each, with the difference in every layer, or the overlap.
NumberWriter differenceNumbers(DifferenceValues values, std::vector<StepPair> pairs, QCPRange visible, bool overlap,
                               bool byToken);

} // namespace kvscope::ui
