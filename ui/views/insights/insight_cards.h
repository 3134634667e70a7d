// The list of findings: one card each with its severity, numbers, what to try and where it shows. Keyboard and mouse.
#pragma once

#include "profiler/insights/insight.h"

#include <QListView>

#include <vector>

class QPainter;

namespace kvscope::ui {

class InsightModel;
struct Theme;

/// "Transfers, exposed time, steps 2–63, layer 4".
QString placeOf(const Evidence& evidence);
/// Text of the profiler as people read it on the screen: µs, en dashes in ranges.
QString shownText(const std::string& text);

/// Draws one card and returns its height; only measures without a painter. roomBelow: pixels below the text.
int drawInsight(QPainter* painter, const QRect& area, const QFont& font, const Insight& insight, const Theme& theme,
                bool selected = false, int roomBelow = 0);

class InsightCards final : public QListView {
    Q_OBJECT
public:
    explicit InsightCards(QWidget* parent = nullptr);
    /// Shows these findings. The chosen one stays chosen if it is among them. whyNoRun: why no session can be run from
    /// here, for the buttons that would; tries: whether there is a view that replays.
    void setInsights(std::vector<Insight> insights, bool tries = false, const QString& whyNoRun = {},
                     bool runs = false);
    const Numbered<Insight>& insights() const;
    QSize sizeHint() const override; // as high as all cards
    QSize minimumSizeHint() const override { return {200, 96}; }

signals:
    void chosen(int index); // click, or Enter on the current one
    void tried(int index);  // the proposal, in What if
    void run(int index);    // the proposal, as a session

protected:
    void resizeEvent(QResizeEvent* event) override;

private:
    void addButtons(int row, bool tries, const QString& whyNoRun, bool runs);
    InsightModel* model_;
};

} // namespace kvscope::ui
