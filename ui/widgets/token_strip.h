// Every generated token as a chip in reading order; it is the step cursor of all views.
#pragma once

#include "ui/frame/shortcuts.h"
#include "ui/models/token_flow.h"

#include <QAbstractScrollArea>
#include <QHash>
#include <QString>
#include <QWidget>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

class QComboBox;
class QLabel;
class QToolButton;

namespace kvscope::ui {

class Workspace;

struct TokenChip {
    int step = -1; // -1: a prompt token
    int position = 0;
    std::int32_t id = 0;
    std::string bytes;
};

/// Paints only the lines in sight. Under each chip a bar shows the misses of its step.
class TokenStrip final : public QAbstractScrollArea {
    Q_OBJECT
public:
    explicit TokenStrip(QWidget* parent = nullptr);

    static std::vector<ShortcutText> gestures(); // for the help
    void clear();
    /// Tail of the prompt, in front of what was generated; replaces everything.
    void setPrompt(std::vector<TokenChip> tail);
    void append(std::vector<TokenChip> chips);
    /// Misses of a step, all layers, heads and sequences.
    void setMisses(int step, std::int64_t misses);
    void setCursor(int step, int firstStep, int lastStep);
    /// Positions of the chosen block's tokens, underlined; an empty range: none.
    void setBlock(int firstPosition, int endPosition);

    int chipCount() const { return int(chips_.size()); }
    int promptCount() const { return promptCount_; }
    int lastStep() const; // -1: nothing was generated
    /// What these steps generated, malformed UTF-8 replaced; a last step < 0: everything.
    QString generatedText(int firstStep = 0, int lastStep = -1) const;
    /// Centre of the chip of a step in viewport coordinates, after scrolling to it.
    QPoint revealStep(int step);

signals:
    void stepChosen(int step);
    void rangeChosen(int firstStep, int lastStep);
    void rangeCleared();
    void promptTokenChosen(int position);
    void menuRequested(QPoint global, int step); // -1: not on a generated token

protected:
    void paintEvent(QPaintEvent* event) override;
    void resizeEvent(QResizeEvent* event) override;
    void mousePressEvent(QMouseEvent* event) override;
    void mouseMoveEvent(QMouseEvent* event) override;
    void mouseReleaseEvent(QMouseEvent* event) override;
    void keyPressEvent(QKeyEvent* event) override;
    void contextMenuEvent(QContextMenuEvent* event) override;
    void changeEvent(QEvent* event) override;
    bool viewportEvent(QEvent* event) override;
    QSize sizeHint() const override;

private:
    void addToFlow(std::size_t index);
    void relayout();
    void updateScrollBar();
    int lineHeight() const;
    int chipAt(QPoint viewportPoint) const;
    int chipOfStep(int step) const;
    void reveal(int chip);
    void choose(int chip, bool extend);
    QString tipOf(int chip) const;
    double barShare(int step) const;

    std::vector<TokenChip> chips_;
    int promptCount_ = 0;
    TokenFlow flow_;
    QHash<std::int32_t, float> widths_; // of chips by token id
    std::vector<std::int64_t> misses_;  // [step], -1: not known
    std::int64_t largestMisses_ = 0;    // of decode steps after the first
    int step_ = 0, firstStep_ = -1, lastStep_ = -1;
    int firstOfBlock_ = -1, endOfBlock_ = -1; // positions
    int anchor_ = -1;                         // step where a range began
    bool dragging_ = false;
};

/// The strip, and its heading: sequence, place of the cursor, whether it follows a live run.
class TokenPanel final : public QWidget {
    Q_OBJECT
public:
    explicit TokenPanel(Workspace& workspace, QWidget* parent = nullptr);
    TokenStrip* strip() const { return strip_; }
    /// Lies beside the title of the panel's dock, so that the strip has all of the height; the dock's once it is there.
    QWidget* heading() const { return heading_; }

private:
    void restart();
    void fetch();
    void showCursor();
    void showHeading();
    void showMenu(QPoint global, int step);

    Workspace& workspace_;
    TokenStrip* strip_;
    QWidget* heading_;
    QLabel *place_, *sequenceLabel_;
    QComboBox* sequence_;
    QToolButton* follow_;
    bool started_ = false, fetching_ = false, again_ = false, moving_ = false;
    int followedStep_ = -1; // where following last put the cursor
    int shownSequence_ = -1, knownSteps_ = 0, promptTokens_ = 0;
};

} // namespace kvscope::ui
