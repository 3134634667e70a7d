// Strip: the requests as lanes, coloured by what each was doing.
#pragma once

#include "ui/views/serving/serving_strip.h"

namespace kvscope::ui {

class LanePlottable;

class LanesStrip final : public ServingStrip {
public:
    enum class Order { Arrival, TimeToFirstToken, WorstGap };

    /// Sets the order in which the next fill() puts the lanes.
    void setOrder(Order order) { order_ = order; }
    /// The lane of a request; below 0: it has none.
    double laneOf(const ServingData& data, std::int64_t request) const;
    const RequestRow* requestAt(const ServingData& data, double lane) const; // null: no lane is there

    void build(QCPAxisRect& panel) override;
    QCPRange fill(const ServingData& data) override;
    void themed(const Theme& theme) override;
    QVector<Swatch> swatches(const Theme& theme) const override;
    void addFacts(const ServingData& data, double ns, double lane, const Add& add) const override;

private:
    void sort(const ServingData& data);

    Order order_ = Order::Arrival;
    LanePlottable* lanes_ = nullptr;
    std::vector<std::size_t> byLane_; // [lane] index of the request
    std::vector<double> lane_;        // [index of the request]
};

/// What a request does in a state, in words.
QString servedStateName(ServedState state);

} // namespace kvscope::ui
