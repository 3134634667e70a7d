// Rates: how fast requests came to a server and left it, how many were in the system, and how fast tokens were made,
// prompts read and blocks loaded, over time.
#include "ui/frame/units.h"
#include "ui/plots/bandwidth.h"
#include "ui/plots/equal_panels.h"
#include "ui/plots/plot_canvas.h"
#include "ui/views/make_views.h"
#include "ui/views/run_text.h"
#include "ui/views/serving/iteration_view.h"

#include <QComboBox>

#include <algorithm>
#include <array>

namespace kvscope::ui {

namespace {

constexpr std::array<double, 6> kIntervalSeconds{0, 0.01, 0.1, 1, 10, 60}; // 0: by the run

class RatesView final : public IterationView {
    Q_OBJECT
public:
    RatesView(Workspace& workspace, QWidget* parent)
        : IterationView(workspace, tr("Rates"),
                        tr("This view shows how fast requests came to a server and left it, how many were in the "
                           "system, and how fast tokens were made, prompts read and blocks loaded."),
                        parent) {
        interval_ = addPicker(QStringLiteral("interval"), tr("Counted in"),
                              tr("The length of the intervals. They divide the run evenly, so that it is about this."));
        for (const double seconds : kIntervalSeconds)
            interval_->addItem(seconds > 0 ? servingTime(seconds * 1e9) : tr("1/60 of the run"), seconds);
        connect(interval_, &QComboBox::currentIndexChanged, this, [this] { ask(); });
        addStrip(makeRequestRateStrip());
        addStrip(makeInSystemStrip());
        addStrip(makeTokenRateStrip());
        addStrip(makePromptRateStrip());
        addStrip(makeLinkRateStrip());
        finishStrips();
        keepEquallyHigh(canvas(), canvas().axisRects());
    }

    QString exportCsv() const override {
        const ServingRates& rates = data().rates;
        if (rates.intervals.empty()) return {};
        QString csv = QStringLiteral("start_ns,length_ns,arrived,finished,lost,tokens,prompt_tokens,loaded_bytes,"
                                     "pcie_to_device_bytes,pcie_to_host_bytes\n");
        const auto number = [](double value) { return QString::number(value, 'g', 17); };
        for (std::size_t i = 0; i < rates.intervals.size(); ++i) {
            const RateInterval& each = rates.intervals[i];
            csv += QStringLiteral("%1,%2,%3,%4,%5,%6,%7,%8,")
                       .arg(number(double(i) * rates.lengthNs), number(rates.lengthNs))
                       .arg(each.arrived)
                       .arg(each.finished)
                       .arg(each.lost)
                       .arg(each.tokens)
                       .arg(each.promptTokens)
                       .arg(number(each.loadedBytes));
            csv += each.pcie ? QStringLiteral("%1,%2\n").arg(each.pcie->countedToDevice).arg(each.pcie->countedToHost)
                             : QStringLiteral(",\n");
        }
        return csv;
    }

    /// A row for each interval in which something happened.
    QString sql() const override {
        const ServingRates& rates = data().rates;
        if (!run() || rates.intervals.empty()) return {};
        return QStringLiteral(
                   "WITH event(ns, arrived, finished, lost, tokens, prompt_tokens, loaded_bytes) AS (\n"
                   "  SELECT arrival_ns, 1, 0, 0, 0, 0, 0 FROM v_request WHERE run_id = %1\n"
                   "  UNION ALL SELECT end_ns, 0, status IN ('length', 'stop'), status NOT IN ('length', 'stop'), 0, 0,"
                   " 0\n    FROM v_request WHERE run_id = %1 AND end_ns IS NOT NULL\n"
                   "  UNION ALL SELECT first_token_ns, 0, 0, 0, 0, prompt_tokens, 0\n"
                   "    FROM v_request WHERE run_id = %1 AND first_token_ns IS NOT NULL\n"
                   "  UNION ALL SELECT token_ns, 0, 0, 0, 1, 0, 0\n"
                   "    FROM v_member WHERE run_id = %1 AND token_ns IS NOT NULL\n"
                   "  UNION ALL SELECT i.start_ns + i.duration_ns, 0, 0, 0, 0, 0, m.h2d_bytes\n"
                   "    FROM v_member m JOIN v_iteration i USING (run_id, iteration) WHERE run_id = %1)\n"
                   "SELECT CAST(min(ns / %2, %3) AS INTEGER) AS interval, sum(arrived) AS arrived,\n"
                   "  sum(finished) AS finished, sum(lost) AS lost, sum(tokens) AS tokens,\n"
                   "  sum(prompt_tokens) AS prompt_tokens, sum(loaded_bytes) AS loaded_bytes\n"
                   "FROM event GROUP BY interval ORDER BY interval;")
            .arg(QString::number(run()->key.runId), QString::number(rates.lengthNs, 'g', 17),
                 QString::number(rates.intervals.size() - 1));
    }

protected:
    ServingWish wish() const override {
        ServingWish wanted;
        wanted.rates = true, wanted.intervalNs = interval_->currentData().toDouble() * 1e9;
        return wanted;
    }

    QString note() const override {
        const ServingRates& rates = data().rates;
        if (rates.intervals.empty()) return healthNote();
        RateInterval all;
        bool sampled = false, counted = false;
        for (const RateInterval& each : rates.intervals) {
            all.arrived += each.arrived, all.finished += each.finished, all.tokens += each.tokens;
            all.loadedBytes += each.loadedBytes;
            if (each.pcie) counted = true, sampled |= each.pcie->sampled;
        }
        const double seconds = data().end() / 1e9;
        const auto rate = [&](double count) { return formatValue(Unit::Fraction, count / seconds); };
        return sentences(
            {tr("Counted in %1 intervals of %2.")
                 .arg(formatCount(std::int64_t(rates.intervals.size())), servingTime(rates.lengthNs)),
             tr("Means over the whole run: %1 requests arrived and %2 finished a second, %3 tokens/s, %4 loaded.")
                 .arg(rate(double(all.arrived)), rate(double(all.finished)), rate(double(all.tokens)),
                      formatBandwidth(all.loadedBytes / seconds)),
             tr("Arrivals are the intended ones. A prompt counts when it is read to its end."),
             !counted  ? tr("The link's bytes are those of the blocks that were missing; the run has no PCIe counters.")
             : sampled ? tr("PCIe: whole packets of everybody on the link, by PM sampling.")
                       : tr("PCIe: whole packets of everybody on the link, by NVML."),
             healthNote()});
    }

private:
    QComboBox* interval_ = nullptr;
};

} // namespace

View* makeRatesView(Workspace& workspace, QWidget* parent) { return new RatesView(workspace, parent); }

} // namespace kvscope::ui

#include "rates_view.moc"
