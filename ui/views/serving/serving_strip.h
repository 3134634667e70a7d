// The strips of the views Serving and Rates: panels below each other that share the time axis.
#pragma once

#include "ui/plots/legend_strip.h"
#include "ui/views/serving/serving_data.h"

#include <QString>
#include <QVector>

#include <functional>
#include <memory>

class QCPAxisRect;
class QCPGraph;

namespace kvscope::ui {

struct Theme;

class ServingStrip {
public:
    /// Takes a line of a tooltip.
    using Add = std::function<void(const QString& name, const QString& value)>;

    virtual ~ServingStrip() = default;
    /// Makes what the strip draws in a panel of its own.
    virtual void build(QCPAxisRect& panel) = 0;
    /// Draws the data. @return the range of all of it on the panel's left axis
    virtual QCPRange fill(const ServingData& data) = 0;
    /// Called when the panel has that range: names the axis, in units that suit it.
    virtual void nameAxis() {}
    virtual void themed(const Theme& theme) = 0;
    virtual QVector<Swatch> swatches(const Theme& theme) const = 0;
    /// What the strip knows of a moment. y: on the left axis
    virtual void addFacts(const ServingData&, double /*ns*/, double /*y*/, const Add&) const {}

protected:
    /// A graph of the panel, a step from each point to the next.
    static QCPGraph* curveIn(QCPAxisRect& panel);
};

/// Percentiles of the times to the first token and between tokens over a sliding window, with their bounds.
std::unique_ptr<ServingStrip> makeLatencyStrip();
/// What iterations took and what was predicted.
std::unique_ptr<ServingStrip> makeIterationsStrip();
/// The device's memory: what is reserved, the working sets on it, the room for them; and the scratch memory of prompts,
/// which stands on the device's budget.
std::unique_ptr<ServingStrip> makeMemoryStrip();

/// Shares of the whole, in percent: thrash over the last second, and how full the host's budget is.
class ThrashStrip : public ServingStrip {
public:
    /// Sets what the next fill() draws. Its rows may be fewer than the iterations.
    virtual void setThrash(Thrash thrash) = 0;
    /// A sentence about thrash that lasted a second or longer; empty where there was none, or it is not known.
    virtual QString finding() const = 0;
};
std::unique_ptr<ThrashStrip> makeThrashStrip();

/// Requests that arrived and that finished, a second.
std::unique_ptr<ServingStrip> makeRequestRateStrip();
/// How many requests are in the system, and how many of them wait for admission or are paused.
std::unique_ptr<ServingStrip> makeInSystemStrip();
/// Tokens made a second.
std::unique_ptr<ServingStrip> makeTokenRateStrip();
/// Tokens of prompts read a second.
std::unique_ptr<ServingStrip> makePromptRateStrip();
/// Bytes a second that came to the device for the iterations, and those that the GPU's counters saw on the link.
std::unique_ptr<ServingStrip> makeLinkRateStrip();

/// "1.23 ms", "4 KiB": as everywhere in the view.
QString servingTime(double ns);
QString servingBytes(double count);
/// What bound a plan (v_iteration.limited_by), in words: "working sets".
QString servingLimit(QString id);
/// The colour with this opacity.
QColor faint(QColor colour, double opacity);

} // namespace kvscope::ui
