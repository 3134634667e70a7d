// Selections with given localities, for models whose weights are random and whose own selections mean nothing.
#pragma once

#include "base/indexed.h"
#include "core/plan/selection_spec.h"
#include "kernels/planted.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kvscope {

/// How many scores must be drawn anew in a step for a selection of a given locality. Found by drawing pairs of steps by
/// the rule of the choice: forced blocks, the best by the planted score, the best of the rest by the other one.
class PlantedRates {
public:
    /// For contexts of up to so many blocks. Takes up to some seconds.
    PlantedRates(const SelectionBudget& budget, int mostBlocks);

    /// The rate of PlantedStream at which selections have this locality (kept / selected, of steps that open no block)
    /// in a context of `blocks` blocks. Of a locality that the method's choice cannot have: the rate that comes
    /// nearest.
    std::uint64_t rateOf(int blocks, double locality) const;

private:
    struct Curve {
        int blocks = 0;
        Numbered<double> localities; // of the rates rateAt(0), rateAt(1), .., which fall
    };
    static constexpr int kRates = 21;
    static double rateAt(int index);
    Curve curveOf(int blocks, int pairs) const;
    double rateOn(const Curve& curve, double locality) const;

    const SelectionBudget budget_;
    std::vector<Curve> curves_; // by blocks, ascending
};

class PlantedSelections {
public:
    /// localities: of each layer, 0 to 1. A model with another number of layers gets interpolated ones.
    PlantedSelections(std::vector<double> localities, const SelectionSpec& spec, int mostBlocks)
        : localities_(std::move(localities)), rates_(std::make_shared<const PlantedRates>(spec.budget, mostBlocks)) {}

    /// The locality of layer `layer` in a model with `layers` layers.
    double localityOf(int layer, int layers) const;
    /// What a row of this seed selects in each of `layers` layers. blocks: of the row's context, whose length should
    /// change little while it decodes
    std::vector<PlantedStream> streams(std::uint64_t seed, int blocks, int layers) const;

private:
    std::vector<double> localities_;
    std::shared_ptr<const PlantedRates> rates_;
};

/// What one sequence selects.
struct PlantedSequence {
    std::shared_ptr<const PlantedSelections> selections;
    std::uint64_t seed = 0;

    /// See PlantedSelections::streams.
    std::vector<PlantedStream> streams(int blocks, int layers) const {
        return selections->streams(seed, blocks, layers);
    }
};

/// Reads localities: `nosa-tiny`, which stands for those that the built-in model has on longmix, or numbers from 0 to 1
/// separated by commas, one for each layer or for some of them. @throws Error(BadInput) for anything else
std::vector<double> plantedLocalities(const std::string& text);

} // namespace kvscope
