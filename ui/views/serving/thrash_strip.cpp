// Strip: how much of the misses is thrash, over the last second, and how full the host's budget is.
#include "ui/frame/units.h"
#include "ui/frame/view.h"
#include "ui/look/theme.h"
#include "ui/views/serving/serving_strip.h"

#include <qcustomplot.h>

#include <algorithm>
#include <cmath>

namespace kvscope::ui {
namespace {

constexpr double kSpanNs = 1e9; // over which shares are taken, and for which they must be high to be a finding
constexpr double kHigh = 50;    // percent

class ThrashStripInPanel final : public ThrashStrip {
public:
    void build(QCPAxisRect& panel) override {
        thrash_ = curveIn(panel), host_ = curveIn(panel), high_ = curveIn(panel);
        QCPAxis* axis = panel.axis(QCPAxis::atLeft);
        axis->setLabel(View::tr("Share (%)"));
        axis->ticker()->setTickCount(3);
    }
    void setThrash(Thrash thrash) override { rows_ = std::move(thrash); }

    QCPRange fill(const ServingData& data) override {
        QVector<double> at, host;
        for (const IterationRow& row : data.rows.iterations) {
            at << double(row.startNs);
            host << (data.budgets.host > 0 ? 100 * double(row.hostBytes) / data.budgets.host : std::nan(""));
        }
        if (!at.isEmpty()) at << double(data.rows.iterations.back().endNs()), host << double(host.back());
        host_->setData(at, host, true);
        std::vector<ThrashRow> known; // of iterations that are there
        ends_.clear(), shares_.clear();
        QVector<double> starts, shares;
        for (const ThrashRow& row : rows_.rows)
            if (const IterationRow* iteration = data.iterationOf(row.iteration)) {
                known.push_back(row);
                ends_.push_back(double(iteration->endNs()));
                starts << double(iteration->startNs);
            }
        shares_ = thrashOverTime(known, ends_, kSpanNs);
        for (double& share : shares_) shares << (share *= 100);
        if (!starts.isEmpty()) starts << ends_.back(), shares << double(shares.back());
        thrash_->setData(starts, shares, true);
        high_->setVisible(!starts.isEmpty());
        high_->setData({0, data.end()}, {kHigh, kHigh}, true);
        return {0, 105};
    }

    void themed(const Theme& theme) override {
        thrash_->setPen(QPen(theme.miss, 1.5)), thrash_->setBrush(faint(theme.miss, 0.35));
        host_->setPen(QPen(theme.resource[0], 1.5));
        high_->setPen(QPen(theme.danger, 1, Qt::DashLine));
    }
    QVector<Swatch> swatches(const Theme& theme) const override {
        return {{View::tr("thrash of the last second"), faint(theme.miss, 0.35), Swatch::Mark::Fill, {}},
                {View::tr("host used"), theme.resource[0], Swatch::Mark::Line, {}}};
    }

    void addFacts(const ServingData& data, double ns, double, const Add& add) const override {
        const IterationRow* iteration = data.iterationAt(ns);
        if (!iteration) return;
        const auto row = std::lower_bound(rows_.rows.begin(), rows_.rows.end(), iteration->iteration,
                                          [](const ThrashRow& r, int number) { return r.iteration < number; });
        if (rows_.basis == Thrash::Basis::Unknown)
            add(View::tr("Thrash"), View::tr("not known: record selections, or serve with cache=global-lru"));
        else if (row != rows_.rows.end() && row->iteration == iteration->iteration)
            add(View::tr("Thrash"), (rows_.basis == Thrash::Basis::Selections
                                         ? View::tr("%1 of %2 misses, of blocks of the last %3 steps")
                                         : View::tr("at most %1 of %2 misses, of blocks of the last %3 steps"))
                                        .arg(formatCount(row->again), formatCount(row->misses))
                                        .arg(rows_.window));
        if (data.budgets.host > 0)
            add(View::tr("Host"),
                View::tr("%1 of %2").arg(servingBytes(double(iteration->hostBytes)), servingBytes(data.budgets.host)));
    }

    QString finding() const override {
        double since = -1;
        for (std::size_t i = 0; i < shares_.size(); ++i) {
            if (!(shares_[i] > kHigh)) {
                since = -1;
                continue;
            }
            if (since < 0) since = ends_[i];
            if (ends_[i] - since < kSpanNs) continue;
            return View::tr("From %1 on, for a second or longer, most misses were of blocks that the same request had "
                            "selected up to %2 steps before: the working sets exceed the device.")
                .arg(servingTime(since))
                .arg(rows_.window);
        }
        return {};
    }

private:
    Thrash rows_;
    std::vector<double> ends_, shares_; // [row that is drawn] ns, percent
    QCPGraph *thrash_ = nullptr, *host_ = nullptr, *high_ = nullptr;
};

} // namespace

std::unique_ptr<ThrashStrip> makeThrashStrip() { return std::make_unique<ThrashStripInPanel>(); }

} // namespace kvscope::ui
