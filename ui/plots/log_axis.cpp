#include "ui/plots/log_axis.h"

#include "ui/frame/units.h"

#include <qcustomplot.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace kvscope::ui {

namespace {

constexpr int kEnough = 7; // a count of ticks; an axis that is given fewer has little room

class LogTicker final : public QCPAxisTicker {
public:
    explicit LogTicker(int base) : base_(base) { setTickCount(kEnough); }

protected:
    double getTickStep(const QCPRange& range) override { return range.size(); } // createTickVector does not use it
    int getSubTickCount(double) override { return 0; }
    QVector<double> createTickVector(double, const QCPRange& range) override {
        const double low = std::pow(base_, range.lower), high = std::pow(base_, range.upper);
        QVector<double> ticks;
        const auto add = [&](double value) {
            const double at = std::log(value) / std::log(base_);
            if (at >= range.lower - 1e-9 && at <= range.upper + 1e-9) ticks.append(at);
        };
        if (high / low < (base_ == 2 ? 4 : 6)) { // the range is too narrow for powers
            const double step = QCPAxisTicker::getTickStep(QCPRange(low, high));
            for (double value = std::ceil(low / step) * step; value <= high; value += step)
                if (value > 0) add(value);
            return ticks;
        }
        const double every = base_ == 2 ? std::max(1.0, std::ceil(range.size() / 12)) : 1;
        for (double power = std::floor(range.lower); power <= range.upper; power += every) {
            add(std::pow(base_, power));
            if (base_ == 10 && range.size() < 3.5)
                for (const double digit : {2.0, 5.0}) add(digit * std::pow(10, power));
        }
        if (tickCount() < kEnough) thin(ticks);
        return ticks;
    }
    QString getTickLabel(double tick, const QLocale&, QChar, int) override {
        const double value = std::pow(base_, tick), whole = std::round(value);
        if (std::abs(value - whole) <= 1e-6 * value) return formatCount(std::int64_t(whole));
        return QString::number(value, 'g', 4);
    }

private:
    /// Leaves as many ticks as were asked for: the powers, every second power, every third, and so on.
    void thin(QVector<double>& ticks) const {
        const QVector<double> all = ticks;
        const auto keep = [&](const auto& wanted) {
            QVector<double> kept;
            std::copy_if(all.cbegin(), all.cend(), std::back_inserter(kept), wanted);
            if (!kept.isEmpty()) ticks = kept;
        };
        for (long every = 1; ticks.size() > tickCount() && every < 64; ++every)
            keep([every](double at) { return std::abs(at - std::round(at)) < 1e-9 && std::lround(at) % every == 0; });
        if (ticks.size() > tickCount()) ticks.resize(tickCount());
    }

    int base_;
};

} // namespace

void setLogAxis(QCPAxis* axis, const QString& title, int base) {
    axis->setLabel(title);
    axis->setProperty("kvscopeUnit", QVariant()); // a later setUnitAxis chooses its unit anew
    axis->setTicker(QSharedPointer<LogTicker>::create(base));
}

} // namespace kvscope::ui
